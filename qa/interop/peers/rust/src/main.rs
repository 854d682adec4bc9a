//! A peer of the interoperability run in Rust, on zmq.rs: see qa/interop/__init__.py for its commands.

use std::error::Error;
use tokio::io::{AsyncBufReadExt, BufReader};
use zeromq::{DealerSocket, ReqSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

type Outcome = Result<(), Box<dyn Error>>;

/// Ends the process when the parent closes standard input.
fn end_with_parent() {
    std::thread::spawn(|| {
        while std::io::stdin().read_line(&mut String::new()).is_ok_and(|count| count > 0) {}
        std::process::exit(0);
    });
}

async fn client<S: Socket + SocketSend + SocketRecv>(endpoint: &str) -> Outcome {
    let mut socket = S::new();
    socket.connect(endpoint).await?;
    println!("ready");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let (request, reply) = line.split_once(' ').ok_or("two paths expected")?;
        socket.send(ZmqMessage::from(std::fs::read(request)?)).await?;
        let message = socket.recv().await?;
        std::fs::write(reply, message.get(message.len() - 1).ok_or("an empty message")?)?;
        println!("done");
    }
    Ok(())
}

async fn echo(endpoint: &str) -> Outcome {
    end_with_parent();
    let mut router = RouterSocket::new();
    router.bind(endpoint).await?;
    println!("ready");
    loop {
        let message = router.recv().await?;
        router.send(message).await?;
    }
}

async fn relay(endpoint: &str, server: &str) -> Outcome {
    end_with_parent();
    let mut router = RouterSocket::new();
    let mut dealer = DealerSocket::new();
    router.bind(endpoint).await?;
    dealer.connect(server).await?;
    println!("ready");
    loop {
        let mut request = router.recv().await?.into_vecdeque();
        let client = request.pop_front().ok_or("an empty message")?;
        dealer.send(ZmqMessage::try_from(request).map_err(|_| "an empty message")?).await?;
        let mut reply = dealer.recv().await?;
        reply.push_front(client);
        router.send(reply).await?;
    }
}

#[tokio::main]
async fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["client", endpoint, "REQ", ..] => client::<ReqSocket>(endpoint).await,
        ["client", endpoint, ..] => client::<DealerSocket>(endpoint).await,
        ["echo", endpoint] => echo(endpoint).await,
        ["relay", endpoint, server] => relay(endpoint, server).await,
        _ => Err("unknown role; CURVE is not implemented by zmq.rs".into()),
    }
}
