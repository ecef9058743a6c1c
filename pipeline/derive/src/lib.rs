//! `#[derive(Batch)]`. Use it through `tinderbox`, which documents the trait.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Data, DeriveInput, Field, Fields, Ident, LitInt, Member, Path, Result, Token, WherePredicate,
    parse_macro_input, parse_quote,
};

/// Implements `Batch` for a struct whose fields are batches: tensors, tuples, `Option`, `Vec` and arrays of them, and
/// other structs.
///
/// A field can have an attribute:
///
/// - `#[batch(whole)]`: belongs to all samples, and is not split, as in `Whole`.
/// - `#[batch(along = 1)]`: its samples are that dimension, as in `Along`; the first has the number 0.
/// - `#[batch(carried)]`: the forward computes its values for the next call, as in `Carried`.
/// - `#[batch(constant)]`: anything that implements `Debug`. The forward may depend on it. Values with
///   different `Debug` texts are different programs, so equal texts must mean equal values, and the text must not change
///   by itself, as the text of a `HashMap` does.
/// - `#[batch(skip)]`: anything that implements `Default`, such as texts for a metric. Every micro-batch has a copy
///   of it. The forward can't depend on it: recordings with its default, and with its value in the first batch of a
///   shape, are compared.
///
/// The type needs `Clone`. If the crate `tinderbox` has another name, the struct needs
/// `#[batch(crate = other::path)]`.
#[proc_macro_derive(Batch, attributes(batch))]
pub fn derive_batch(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let batch = implement(&input);
    batch
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

fn implement(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        let message = "only a struct can be a `Batch`: all its values have the same tensors";
        return Err(syn::Error::new(input.ident.span(), message));
    };
    let tinderbox = crate_path(input)?;
    let (mut members, mut values, mut bounds) = (Vec::new(), Vec::new(), Vec::new());
    for (index, field) in data.fields.iter().enumerate() {
        let (member, value, bound) = map_field(&tinderbox, index, field)?;
        members.push(member);
        values.push(value);
        bounds.push(bound);
    }
    // A pattern binds a field to a variable, whose name must not be the name of another item.
    let variables: Vec<Ident> = (0..members.len())
        .map(|index| quote::format_ident!("field_{index}"))
        .collect();
    let mut generics = input.generics.clone();
    if generics.type_params().next().is_some() {
        let predicates = &mut generics.make_where_clause().predicates;
        predicates.push(parse_quote!(Self: ::core::clone::Clone + Send + Sync + 'static));
        predicates.extend(bounds);
    }
    let name = &input.ident;
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    let mapper = match data.fields {
        Fields::Unit => quote!(_),
        Fields::Named(_) | Fields::Unnamed(_) => quote!(mapper),
    };
    Ok(quote! {
        impl #impl_generics #tinderbox::Batch for #name #type_generics #where_clause {
            fn map_tensors(self, #mapper: &mut #tinderbox::batch::BatchMapper<'_>) -> Self {
                let Self { #(#members: #variables),* } = self;
                Self { #(#members: #values),* }
            }
        }
    })
}

/// The path of the crate `tinderbox`.
fn crate_path(input: &DeriveInput) -> Result<Path> {
    let mut path: Path = parse_quote!(::tinderbox);
    for attribute in input.attrs.iter().filter(|a| a.path().is_ident("batch")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("expected `crate = path`: the others are for fields"));
            }
            path = meta.value()?.call(Path::parse_mod_style)?;
            Ok(())
        })?;
    }
    Ok(path)
}

/// Returns a field, its value in the new struct, and what its type needs in a struct with type parameters.
fn map_field(
    tinderbox: &Path,
    index: usize,
    field: &Field,
) -> Result<(Member, TokenStream, WherePredicate)> {
    let (member, name) = match &field.ident {
        Some(name) => (Member::Named(name.clone()), name.unraw().to_string()),
        None => (Member::from(index), index.to_string()),
    };
    let variable = quote::format_ident!("field_{index}");
    // Errors about missing traits point to the type of the field.
    let (of, at) = (&field.ty, Span::call_site().located_at(field.ty.span()));
    let batch = parse_quote!(#of: #tinderbox::Batch);
    let (value, bound) = match role(field)? {
        Role::Tensors => (quote_spanned!(at=> mapper.field(#name, #variable)), batch),
        Role::Within(wrapper) => (
            quote_spanned!(at=> mapper.field(#name, #tinderbox::#wrapper(#variable)).0),
            batch,
        ),
        Role::Constant => (
            quote_spanned!(at=> mapper.constant(#name, #variable)),
            parse_quote!(#of: ::core::fmt::Debug),
        ),
        Role::Skip => (
            quote_spanned!(at=> mapper.skip(#variable)),
            parse_quote!(#of: ::core::default::Default),
        ),
    };
    Ok((member, value, bound))
}

/// How a field is mapped.
enum Role {
    Tensors,
    /// As tensors in a wrapper: `Whole`, `Along` or `Carried`.
    Within(TokenStream),
    Constant,
    Skip,
}

fn role(field: &Field) -> Result<Role> {
    let mut role = Role::Tensors;
    let at = Span::call_site().located_at(field.ty.span());
    for attribute in field.attrs.iter().filter(|a| a.path().is_ident("batch")) {
        attribute.parse_nested_meta(|meta| {
            if !matches!(role, Role::Tensors) {
                return Err(meta.error("a field has one attribute at most"));
            }
            let name = meta.path.get_ident().map(Ident::to_string);
            role = match name.as_deref() {
                Some("whole") => Role::Within(quote_spanned!(at=> Whole)),
                Some("along") => {
                    let axis: LitInt = meta.value()?.parse()?;
                    Role::Within(quote_spanned!(at=> Along::<#axis, _>))
                }
                Some("carried") => Role::Within(quote_spanned!(at=> Carried)),
                Some("constant") => Role::Constant,
                Some("skip") => Role::Skip,
                _ => {
                    let message = "expected `whole`, `along = 1`, `carried`, `constant` or `skip`";
                    return Err(meta.error(message));
                }
            };
            match meta.input.is_empty() || meta.input.peek(Token![,]) {
                true => Ok(()),
                false => Err(meta.error("this attribute has no value")),
            }
        })?;
    }
    Ok(role)
}
