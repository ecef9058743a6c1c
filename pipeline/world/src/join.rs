//! Joins the world of a launcher.

use crate::environment::Environment;
use crate::error::WorldError;
use crate::options::WorldOptions;
use crate::world::World;

impl World {
    /// Joins the world that the variables of a launcher describe ([`Environment::read`]), with the settings of
    /// [`WorldOptions::from_env`]. Without a launcher, this process is alone.
    ///
    /// # Errors
    ///
    /// When variables are missing or invalid; otherwise the errors of [`join`](Self::join).
    pub fn from_env() -> Result<Self, WorldError> {
        Self::join(Environment::from_env()?, WorldOptions::from_env()?)
    }

    /// Joins a world over gRPC (feature `grpc`): the first rank listens where the ranks meet.
    ///
    /// # Errors
    ///
    /// When there are several processes, but no meeting or no engine; when some do not join in time, or refuse this one.
    pub fn join(environment: Environment, options: WorldOptions) -> Result<Self, WorldError> {
        if environment.size == 1 {
            return Ok(Self::alone());
        }
        #[cfg(feature = "grpc")]
        {
            let engine = crate::grpc::Grpc::new(&environment, &options)?;
            Self::over(&environment, options, Box::new(engine))
        }
        #[cfg(not(feature = "grpc"))]
        {
            // Only an engine uses them.
            drop(options);
            Err(WorldError::NoEngine {
                launcher: environment.launcher,
                size: environment.size,
                hint: "build the program with the feature `grpc`, or join with an engine for MPI",
            })
        }
    }
}
