//! The error of a whole program.

/// Declares the enum with a variant for each error, and the conversions.
macro_rules! errors {
    ($($(#[$attribute:meta])* $variant:ident($error:ident),)*) => {
        /// Any error of the libraries. `?` converts each of them, so `Result<(), tinderbox::Error>` is the result of a whole
        /// program. Displays as the error in it, with the same causes.
        ///
        /// ```
        /// use burn::nn::LinearConfig;
        /// use burn::tensor::Device;
        /// use tinderbox::{Deferred, Machine};
        ///
        /// fn main() -> Result<(), tinderbox::Error> {
        ///     let model = Deferred::new(|device: &Device| LinearConfig::new(8, 8).init(device))?;
        ///     let machine = Machine::local(2)?;
        ///     println!("{model} on {} ranks", machine.ranks());
        ///     Ok(())
        /// }
        /// ```
        #[derive(Debug, thiserror::Error)]
        #[non_exhaustive]
        pub enum Error {
            $(
                $(#[$attribute])*
                #[error(transparent)]
                $variant(Box<super::$error>),
            )*
            /// Files of the program itself.
            #[error(transparent)]
            Io(#[from] std::io::Error),
        }

        $(
            $(#[$attribute])*
            impl From<super::$error> for Error {
                fn from(error: super::$error) -> Self {
                    Self::$variant(Box::new(error))
                }
            }
        )*
    };
}

errors! {
    /// A recording.
    Record(RecordError),
    /// The use of a tensor.
    Fake(FakeError),
    /// A region of a tensor.
    Region(RegionError),
    /// A file of a graph.
    GraphFile(GraphFileError),
    /// A device.
    Execution(ExecutionError),
    /// The recording of a model.
    Deferred(DeferredError),
    /// The materialization of parameters.
    Materialize(MaterializeError),
    /// A source of parameters.
    Source(SourceError),
    /// A recipe of a parameter.
    Recipe(RecipeError),
    /// A program.
    Program(ProgramError),
    /// Random values.
    Random(RandomError),
    /// The opening of a device.
    Device(DeviceError),
    /// A path that no parameter has.
    UnknownPath(UnknownPath),
    /// A named schedule.
    ScheduleKind(ScheduleKindError),
    /// A schedule that ranks can't run.
    Verify(VerifyError),
    /// The search for a schedule.
    Auto(AutoError),
    /// The text of a schedule.
    Parse(ParseError),
    /// The text of a link model.
    LinkModel(LinkModelError),
    /// A machine.
    Machine(MachineError),
    /// The work of a step.
    Work(WorkError),
    /// A partition, or its prediction.
    Planner(PlannerError),
    /// The file of a plan.
    PlanFile(PlanFileError),
    /// The prediction of a streamed pass.
    Stream(StreamError),
    /// The name of a partitioner.
    UnknownPartitioner(UnknownPartitioner),
    /// The text of a number of bytes.
    UnknownSize(UnknownSize),
    /// A plan of another model.
    ModelDifference(ModelDifference),
    /// A batch.
    Batch(BatchError),
    /// A trace.
    Trace(TraceError),
    /// A plan.
    Plan(PlanError),
    /// The lists of a schedule.
    Lists(ListsError),
    /// A pipeline, or a streamed model.
    Pipeline(PipelineError),
    /// A profile.
    Profile(ProfileError),
    /// The measurement of a machine.
    Calibrate(CalibrateError),
    /// A named output.
    Output(OutputError),
    /// A message between ranks.
    Link(LinkError),
    /// The form of a checkpoint.
    Format(FormatError),
    /// The header of a file of tensors.
    Header(HeaderError),
    /// Chunks that do not tile a tensor.
    Layout(LayoutError),
    /// The load of a checkpoint.
    Load(LoadError),
    /// The save of a checkpoint.
    Save(SaveError),
    /// An operation on a whole checkpoint.
    Tool(ToolError),
    /// A bucket.
    #[cfg(feature = "object-store")]
    #[cfg_attr(docsrs, doc(cfg(feature = "object-store")))]
    Bucket(BucketError),
    /// The variables that describe a process.
    Environment(EnvironmentError),
    /// A world of processes.
    World(WorldError),
    /// A frame between processes.
    Frame(FrameError),
    /// The checkpoints of a run.
    Checkpoints(CheckpointsError),
    /// The prediction of a load.
    DryRun(DryRunError),
    /// The comparison with plain Burn.
    Compare(CompareError),
    /// A session.
    Session(SessionError),
    /// Signals that end a training.
    #[cfg(feature = "signals")]
    #[cfg_attr(docsrs, doc(cfg(feature = "signals")))]
    Signal(SignalError),
    /// The generation of a text.
    Generate(GenerateError),
}
