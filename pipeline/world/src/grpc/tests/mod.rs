//! Strangers: a process that is not a rank of this run is refused with a reason, and the run continues.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use http::HeaderMap;
use tinderbox_ids::RankIndex;
use tokio::runtime::Runtime;

use super::call::{self, CARRY, JOIN, RANK, RUN};
use super::engine::Grpc;
use super::join::{Hello, VERSION};
use crate::environment::{Environment, Launcher, Meeting};
use crate::error::WorldError;
use crate::options::WorldOptions;
use crate::world::World;

fn rank(index: usize) -> RankIndex {
    RankIndex::new(index)
}

fn meeting() -> Meeting {
    Meeting::on_this_machine().unwrap()
}

fn environment(index: usize, size: usize, meeting: &Meeting) -> Environment {
    Environment {
        launcher: Launcher::Torchrun,
        rank: rank(index),
        size,
        local: None,
        meeting: Some(meeting.clone()),
    }
}

fn options() -> WorldOptions {
    WorldOptions {
        heartbeat: Duration::from_millis(50),
        join_timeout: Duration::from_secs(20),
        ..WorldOptions::default()
    }
}

/// Returns a text without the port of a meeting.
fn shown(text: &str, meeting: &Meeting) -> String {
    text.replace(&meeting.port.to_string(), "PORT")
}

fn join(
    index: usize,
    size: usize,
    meeting: &Meeting,
    options: &WorldOptions,
) -> Result<World, WorldError> {
    World::join(environment(index, size, meeting), options.clone())
}

fn hello() -> Hello {
    Hello {
        version: VERSION.to_owned(),
        rank: rank(1),
        size: 2,
        port: 1,
        machine: "stranger".to_owned(),
    }
}

/// Calls the first rank as a stranger, and returns why it is refused.
fn refused(meeting: &Meeting, path: &'static str, headers: HeaderMap, message: Vec<u8>) -> String {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let (address, long) = (meeting.to_string(), Duration::from_secs(10));
        let mut channel = call::connect(rank(0), &address, None, long).await.unwrap();
        let answer = call::call(&mut channel, rank(0), path, headers, call::one(message)).await;
        match answer {
            Err(WorldError::Refused { by, reason }) => {
                assert_eq!(by, rank(0));
                reason
            }
            other => panic!("{other:?}"),
        }
    })
}

/// Bytes that are not HTTP/2, and the bytes of a client that closes its connection in the middle.
fn scan(meeting: &Meeting) {
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0; 1000],
        &[0xff; 70_000],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x00",
        b"",
    ] {
        let mut stream = TcpStream::connect((meeting.host.as_str(), meeting.port)).unwrap();
        let timeout = Some(Duration::from_millis(100));
        stream.set_read_timeout(timeout).unwrap();
        // It may be closed at any byte.
        let _ = stream.write_all(bytes);
        let _ = stream.read(&mut [0; 100]);
    }
}

#[test]
fn strangers_are_refused_and_the_run_continues() {
    let meeting = meeting();
    let options = options();
    let (first, all) = thread::scope(|scope| {
        let first = scope.spawn(|| join(0, 2, &meeting, &options).unwrap());
        let send = |path, message| refused(&meeting, path, HeaderMap::new(), message);
        let say = |change: fn(&mut Hello)| {
            let mut hello = hello();
            change(&mut hello);
            send(JOIN, postcard::to_stdvec(&hello).unwrap())
        };
        let run = call::headers(None, &[(RUN, "7".to_owned()), (RANK, "1".to_owned())]);
        let texts = [
            say(|hello| hello.version = "tinderbox 0.0.1, protocol 0".to_owned()),
            say(|hello| hello.version = "another program".to_owned()),
            say(|hello| hello.size = 3),
            say(|hello| hello.rank = rank(0)),
            say(|hello| hello.rank = rank(2)),
            send(JOIN, vec![0xff; 40]),
            send(JOIN, Vec::new()),
            send(JOIN, vec![7; (1 << 20) + 1]),
            send("/tinderbox.World/Other", Vec::new()),
        ];
        scan(&meeting);
        let second = join(1, 2, &meeting, &options).unwrap();
        let first = first.join().unwrap();
        // Connected: the port still listens, and refuses.
        let late = [
            say(|_| {}),
            refused(&meeting, CARRY, run, Vec::new()),
            send(CARRY, Vec::new()),
        ];
        scan(&meeting);
        let late = late.map(|text| shown(&text, &meeting).replace(char::is_numeric, "N"));
        let second = scope.spawn(move || second.all_gather(1).unwrap());
        assert_eq!(first.all_gather(0).unwrap(), [0, 1]);
        assert_eq!(second.join().unwrap(), [0, 1]);
        (texts.join("\n"), late.join("\n"))
    });
    insta::assert_snapshot!(first, @r#"
    this run is tinderbox 0.1.0, protocol 1, and it is tinderbox 0.0.1, protocol 0
    it is not a rank of Tinderbox
    this run has 2 ranks, and it says that there are 3
    rank 0 is not one of 1 to 1
    rank 2 is not one of 1 to 1
    it is not a rank of Tinderbox
    it is not a rank of Tinderbox
    it sent 1048577 bytes as one message, the limit is 1048576
    ranks of Tinderbox call Join and Carry
    "#);
    insta::assert_snapshot!(all, @r#"
    rank N has already joined, from NNN.N.N.N:NNNNN: does another run use NNN.N.N.N:PORT?
    it belongs to another run
    it belongs to another run
    "#);
}

#[test]
fn a_token_keeps_others_out() {
    let meeting = meeting();
    let mut options = options();
    options.token = Some("secret".to_owned());
    thread::scope(|scope| {
        let first = scope.spawn(|| join(0, 2, &meeting, &options).unwrap());
        let hello = postcard::to_stdvec(&hello()).unwrap();
        for token in [None, Some("secreu"), Some("secret "), Some("")] {
            let headers = call::headers(token, &[]);
            let text = refused(&meeting, JOIN, headers, hello.clone());
            assert_eq!(text, "its token is not the one of this run");
        }
        let second = join(1, 2, &meeting, &options).unwrap();
        let local = (second.local().rank, second.local().size);
        assert_eq!(local, (1, 2), "both are on this machine");
        drop((first.join().unwrap(), second));
    });
}

/// A second launch on the port of a running one: its first rank can't listen, and its others are refused.
#[test]
fn two_runs_on_one_port() {
    let meeting = meeting();
    let options = options();
    thread::scope(|scope| {
        let first = scope.spawn(|| join(0, 2, &meeting, &options).unwrap());
        let second = join(1, 2, &meeting, &options).unwrap();
        let first = first.join().unwrap();
        let errors = [0, 1].map(|rank| join(rank, 2, &meeting, &options).unwrap_err());
        let texts = errors.map(|error| shown(&error.to_string(), &meeting));
        assert_eq!(
            texts[0],
            "rank 0 can't listen on 127.0.0.1:PORT: another program or another run uses this port; set MASTER_PORT to a \
             free one"
        );
        let expected = "rank 0 refused this process: rank 1 has already joined";
        assert!(texts[1].starts_with(expected), "{}", texts[1]);
        // The first run continues.
        let second = scope.spawn(move || second.barrier());
        first.barrier().unwrap();
        second.join().unwrap().unwrap();
    });
    // Nothing listens any more.
    TcpListener::bind((meeting.host.as_str(), meeting.port)).unwrap();
}

#[test]
fn ranks_that_do_not_join_are_named_on_all() {
    let meeting = meeting();
    let mut options = options();
    options.join_timeout = Duration::from_millis(500);
    let texts = thread::scope(|scope| {
        let ranks = [0, 2].map(|rank| {
            let (meeting, options) = (&meeting, &options);
            scope.spawn(move || join(rank, 4, meeting, options).unwrap_err().to_string())
        });
        ranks.map(|rank| shown(&rank.join().unwrap(), &meeting))
    });
    insta::assert_snapshot!(texts.join("\n"), @r#"
    ranks 1, 3 have not joined at 127.0.0.1:PORT within 500ms: are all processes started, and can they reach this address?
    rank 0 refused this process: ranks 1, 3 did not join within 500ms
    "#);
    let text = join(1, 2, &meeting, &options).unwrap_err().to_string();
    insta::assert_snapshot!(shown(&text, &meeting), @"rank 0 can't be reached at 127.0.0.1:PORT within 500ms: transport error: tcp connect error: Connection refused (os error 111)");
}

/// A rank that leaves before all have joined can join again.
#[test]
fn a_rank_can_join_again() {
    let meeting = meeting();
    let options = options();
    thread::scope(|scope| {
        let first = scope.spawn(|| join(0, 3, &meeting, &options).unwrap());
        Runtime::new().unwrap().block_on(async {
            let address = meeting.to_string();
            let long = Duration::from_secs(10);
            let mut channel = call::connect(rank(0), &address, None, long).await.unwrap();
            let hello = Hello { size: 3, ..hello() };
            let body = call::one(postcard::to_stdvec(&hello).unwrap());
            let waits = call::call(&mut channel, rank(0), JOIN, HeaderMap::new(), body);
            let waited = tokio::time::timeout(Duration::from_millis(300), waits).await;
            assert!(waited.is_err(), "it waits for the third rank");
        });
        let others = [1, 2].map(|rank| {
            let (meeting, options) = (&meeting, &options);
            scope.spawn(move || join(rank, 3, meeting, options).unwrap())
        });
        let worlds = others.map(|other| other.join().unwrap());
        let first = first.join().unwrap();
        let ends = worlds.map(|world| scope.spawn(move || world.all_gather(world.rank()).unwrap()));
        let expected = [0, 1, 2].map(rank);
        assert_eq!(first.all_gather(rank(0)).unwrap(), expected);
        let ends = ends.map(|end| end.join().unwrap());
        assert!(ends.iter().all(|end| *end == expected), "{ends:?}");
    });
}

#[test]
fn other_machines_need_a_token_or_tls() {
    let far: Meeting = "192.0.2.1:29500".parse().unwrap();
    let error = Grpc::new(&environment(1, 2, &far), &options()).unwrap_err();
    insta::assert_snapshot!(error, @"192.0.2.1:29500 is not on this machine alone, and there is neither a token nor TLS: set TINDERBOX_TOKEN to the same secret on all machines, or TINDERBOX_TLS to a directory with ca.pem, cert.pem and key.pem");
    let mut protected = options();
    protected.token = Some("x".to_owned());
    Grpc::new(&environment(1, 2, &far), &protected).unwrap();
    protected.tls = Some("/nowhere".into());
    let error = Grpc::new(&environment(1, 2, &far), &protected).unwrap_err();
    insta::assert_snapshot!(error, @"TLS: /nowhere/ca.pem can't be used");
}

/// Frames of a process that lies about lengths end its connection, and are named.
#[test]
fn a_damaged_stream_is_a_lost_rank() {
    let (sender, lost) = channel();
    struct Reasons(Sender<String>);
    impl crate::engine::Events for Reasons {
        fn received(&self, _: RankIndex, _: crate::frame::Received) {}
        fn alive(&self, _: RankIndex) {}
        fn lost(&self, _: RankIndex, reason: String) {
            self.0.send(reason).unwrap();
        }
    }
    let events = Arc::new(Reasons(sender));
    let runtime = Runtime::new().unwrap();
    let mut reasons = Vec::new();
    for message in [
        vec![0xff; 16],
        vec![3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        vec![1; 15],
    ] {
        runtime.block_on(super::read::read(
            rank(1),
            call::one(message),
            events.clone(),
        ));
        reasons.push(lost.recv().unwrap());
    }
    insta::assert_snapshot!(reasons.join("\n"), @r#"
    it sent bytes that are not a frame: a frame announces 4294967295 bytes of header, the limit is 16777216
    the bytes end within a frame, 2 bytes too early
    the bytes end within a frame, 1 bytes too early
    "#);
}

/// A directory with the certificate of an authority, and a certificate that it signed.
fn certificates(authority: &rcgen::CertifiedIssuer<'_, rcgen::KeyPair>) -> tempfile::TempDir {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["tinderbox".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    write("ca.pem", authority.pem());
    write("cert.pem", certificate.pem());
    write("key.pem", key.serialize_pem());
    dir
}

fn authority() -> rcgen::CertifiedIssuer<'static, rcgen::KeyPair> {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap()
}

/// Both sides show a certificate of one authority; a process with another one, or without one, is refused.
#[test]
fn tls_with_certificates_on_both_sides() {
    let meeting = meeting();
    let (ours, theirs) = (authority(), authority());
    let [first_dir, second_dir] = [(); 2].map(|()| certificates(&ours));
    let stranger_dir = certificates(&theirs);
    let with = |dir: &tempfile::TempDir| WorldOptions {
        tls: Some(dir.path().to_owned()),
        ..options()
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| join(0, 2, &meeting, &with(&first_dir)).unwrap());
        let mut short = with(&stranger_dir);
        short.join_timeout = Duration::from_secs(1);
        let error = join(1, 2, &meeting, &short).unwrap_err().to_string();
        assert!(error.contains("invalid peer certificate"), "{error}");
        let mut plain = options();
        plain.join_timeout = Duration::from_secs(1);
        let error = join(1, 2, &meeting, &plain).unwrap_err().to_string();
        assert!(error.starts_with("rank 0 "), "{error}");
        let second = join(1, 2, &meeting, &with(&second_dir)).unwrap();
        let first = first.join().unwrap();
        let second = scope.spawn(move || second.all_gather(vec![1_u8; 3 << 20]).unwrap().len());
        assert_eq!(first.all_gather(vec![0; 5]).unwrap().len(), 2);
        assert_eq!(second.join().unwrap(), 2);
    });
}
