//! The table of parameters: lookups, and errors of lookups.

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Bool, BoolStore, DType, Device, Int, Tensor};
use tinderbox_deferred::{Deferred, ParameterPath, ParameterTable};

#[derive(Module, Debug)]
struct Layer {
    norm: RmsNorm,
    query: Linear,
    output: Linear,
}

#[derive(Module, Debug)]
struct Model {
    layers: Vec<Layer>,
    head: Linear,
    positions: Param<Tensor<1, Int>>,
    mask: Param<Tensor<1, Bool>>,
}

fn model(device: &Device) -> Model {
    let layer = || Layer {
        norm: RmsNormConfig::new(4).init(device),
        query: LinearConfig::new(4, 4).init(device),
        output: LinearConfig::new(4, 4).with_bias(false).init(device),
    };
    Model {
        layers: (0..12).map(|_| layer()).collect(),
        head: LinearConfig::new(4, 2).with_bias(false).init(device),
        positions: Param::initialized(ParamId::new(), Tensor::arange(0..3, device)),
        mask: Param::initialized(ParamId::new(), Tensor::from_bool([true, false], device)),
    }
}

fn table() -> ParameterTable {
    let model = Deferred::new(model).unwrap();
    ParameterTable::clone(model.parameters())
}

#[test]
fn every_path_is_found() {
    let table = table();
    for (index, parameter) in table.iter().enumerate() {
        let path = parameter.path.as_str();
        assert!(std::ptr::eq(table.find(path).unwrap(), parameter), "{path}");
        assert!(
            std::ptr::eq(table.get(&parameter.path).unwrap(), parameter),
            "{index}"
        );
    }
    assert_eq!(table.get(&ParameterPath::new("layers.12.norm.gamma")), None);
}

#[test]
fn an_unknown_path_has_suggestions() {
    let table = table();
    for (path, expected) in [
        (
            "layers.3.query.weigth",
            "the model has no parameter `layers.3.query.weigth`: the nearest are \
             `layers.3.query.weight`, `layers.3.query.bias`, `layers.3.output.weight`",
        ),
        (
            "layer.11.norm.gamma",
            "the model has no parameter `layer.11.norm.gamma`: the nearest are \
             `layers.11.norm.gamma`, `layers.1.norm.gamma`, `layers.10.norm.gamma`",
        ),
        (
            "layers.12.norm.gamma",
            "the model has no parameter `layers.12.norm.gamma`: the nearest are \
             `layers.11.norm.gamma`, `layers.10.norm.gamma`, `layers.2.norm.gamma`",
        ),
        (
            "layers.5.norm.weight",
            "the model has no parameter `layers.5.norm.weight`: the nearest are \
             `layers.5.norm.gamma`, `layers.5.query.weight`, `layers.5.output.weight`",
        ),
        (
            "head.bias",
            "the model has no parameter `head.bias`: the nearest are `head.weight`, \
             `positions`, `mask`",
        ),
        ("head", "`head` is a module of 1 parameter: `head.weight`"),
        (
            "layers.3.query",
            "`layers.3.query` is a module of 2 parameters: `layers.3.query.weight`, \
             `layers.3.query.bias`",
        ),
        (
            "layers.3",
            "`layers.3` is a module of 4 parameters: `layers.3.norm.gamma`, `layers.3.query.weight`, \
             `layers.3.query.bias`, and 1 more",
        ),
    ] {
        assert_eq!(table.find(path).unwrap_err().to_string(), expected);
    }
    let none = ParameterTable::default();
    assert_eq!(
        none.find("head.weight").unwrap_err().to_string(),
        "the model has no parameter `head.weight`: it has no parameters"
    );
}

#[test]
fn unknown_modules_too() {
    let near = table().near_modules("layers.7.querry");
    assert_eq!(near[0], "layers.7.query");
    assert_eq!(table().near_modules("heads")[0], "head");
}

#[test]
fn the_table_is_readable_json_and_round_trips() {
    let table = table();
    let json = serde_json::to_value(&table).unwrap();
    let dtypes = ["head.weight", "positions", "mask"].map(|path| {
        let rows = json.as_array().unwrap();
        let row = rows.iter().find(|row| row["path"] == path).unwrap();
        (
            row["kind"].as_str().unwrap(),
            row["dtype"].as_str().unwrap(),
        )
    });
    assert_eq!(dtypes, [("float", "f32"), ("int", "i32"), ("bool", "bool")]);
    let text = serde_json::to_string(&table).unwrap();
    assert_eq!(
        serde_json::from_str::<ParameterTable>(&text).unwrap(),
        table
    );
    // Every dtype keeps its name, however booleans are stored.
    for dtype in [
        DType::BF16,
        DType::Flex32,
        DType::U64,
        DType::Bool(BoolStore::U8),
        DType::Bool(BoolStore::U32),
    ] {
        let mut parameter = table.find("head.weight").unwrap().clone();
        parameter.dtype = dtype;
        let text = serde_json::to_string(&parameter).unwrap();
        assert_eq!(
            serde_json::from_str::<tinderbox_deferred::Parameter>(&text).unwrap(),
            parameter
        );
    }
    let unknown = text.replace("\"i32\"", "\"i33\"");
    let error = serde_json::from_str::<ParameterTable>(&unknown).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("`i33` is not a dtype: the dtypes are f64, f32"),
        "{error}"
    );
}
