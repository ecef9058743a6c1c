//! The world of a launcher.

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
    /// As [`join`](Self::join); when variables are missing or wrong.
    pub fn from_env() -> Result<Self, WorldError> {
        let environment = Environment::from_env()?;
        let options = WorldOptions::from_env().map_err(WorldError::Environment)?;
        Self::join(environment, options)
    }

    /// Joins a world over gRPC (feature `grpc`): the first rank listens where the ranks meet.
    ///
    /// # Errors
    ///
    /// When there are several processes and no meeting or no engine; when some do not come in time, or refuse this one.
    #[cfg_attr(
        not(feature = "grpc"),
        expect(clippy::needless_pass_by_value, reason = "an engine owns them")
    )]
    pub fn join(environment: Environment, options: WorldOptions) -> Result<Self, WorldError> {
        let Environment { launcher, size, .. } = environment;
        if size == 1 {
            return Ok(Self::alone());
        }
        let no_engine = |hint| WorldError::NoEngine {
            launcher,
            size,
            hint,
        };
        if environment.meeting.is_none() {
            return Err(no_engine(
                "set MASTER_ADDR and MASTER_PORT to the address of the first rank, or join with an engine for MPI",
            ));
        }
        #[cfg(feature = "grpc")]
        {
            let engine = crate::grpc::Grpc::new(&environment, &options)?;
            Self::over(&environment, options, Box::new(engine))
        }
        #[cfg(not(feature = "grpc"))]
        {
            let _ = options;
            Err(no_engine("build the program with the feature `grpc`"))
        }
    }
}
