//! One connection: the hello, frames in, frames out.
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pandacore_gossip::{
    Class, FRAME_HEADER, Frame, Hello, HostId, HostRecord, OutQueue, hello_bytes, read_hello,
};
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::sync::{Notify, mpsc};

use crate::tls::peer_of;
use crate::{Refused, lock};

/// Application close codes.
pub(crate) const WRONG_COLLECTIVE: u32 = 1;
pub(crate) const NO_TICKET: u32 = 2;
pub(crate) const BAD_HELLO: u32 = 3;
pub(crate) const GOODBYE: u32 = 5;
pub(crate) const MYSELF: u32 = 6;
pub(crate) const VIOLATION: u32 = 7;
pub(crate) const REPLACED: u32 = 8;

const HELLO_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_HELLO: usize = 1024;

/// What a connection tells the driver.
pub(crate) enum Event {
    Up(Box<Link>, HostRecord),
    Datagram(HostId, Vec<u8>),
    Frame(HostId, Vec<u8>),
    Down(HostId, usize),
    DialFailed(Option<HostId>, SocketAddr, Option<Refused>),
}

/// What waits to be sent to one host; outlives a single connection.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) queue: Mutex<OutQueue>,
    pub(crate) urgent: Notify,
    pub(crate) bulk: Notify,
}

/// An open connection whose hello was accepted.
pub(crate) struct Link {
    pub(crate) host: HostId,
    pub(crate) connection: Connection,
    pub(crate) dialled: Option<SocketAddr>,
}

/// Judges hellos; shared by all connections.
pub(crate) struct Door {
    pub(crate) collective: [u8; 32],
    pub(crate) admission: Option<pandacore_trust::AgentId>,
    pub(crate) me: HostId,
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(bytes)
}

impl Door {
    /// Whether the other side may come in; otherwise a close code and a reason.
    fn judge(&self, host: &HostId, hello: &Hello, wall: u64) -> Result<(), (u32, String)> {
        if *host == self.me {
            return Err((MYSELF, "this is the same host".into()));
        }
        if hello.collective != self.collective {
            return Err((WRONG_COLLECTIVE, hex(&self.collective)));
        }
        if hello.record.host != *host {
            return Err((BAD_HELLO, "the record is of another host".into()));
        }
        if let Some(admission) = &self.admission {
            let valid = hello.ticket.as_ref().is_some_and(|(not_after, sig)| {
                let message = crate::ticket_message(&self.collective, host, *not_after);
                // Clocks may differ by five minutes.
                not_after.saturating_add(300) >= wall && admission.verify(&message, &sig.bytes()).is_ok()
            });
            if !valid {
                return Err((NO_TICKET, "this collective admits hosts by ticket".into()));
            }
        }
        Ok(())
    }
}

pub(crate) fn wall() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

async fn exchange(
    connection: &Connection,
    door: &Door,
    mine: &[u8],
    dialled: bool,
) -> Result<HostRecord, (u32, String)> {
    let host = peer_of(connection).ok_or((BAD_HELLO, "no key".to_owned()))?;
    let lost = |error: &dyn std::fmt::Display| (BAD_HELLO, format!("hello: {error}"));
    let (mut send, mut receive) = if dialled {
        connection.open_bi().await.map_err(|error| lost(&error))?
    } else {
        connection.accept_bi().await.map_err(|error| lost(&error))?
    };
    if dialled {
        write_hello(&mut send, mine).await.map_err(|error| lost(&error))?;
    }
    let bytes = receive
        .read_to_end(MAX_HELLO)
        .await
        .map_err(|error| lost(&error))?;
    let hello = read_hello(&bytes).map_err(|error| lost(&error))?;
    door.judge(&host, &hello, wall())?;
    if !dialled {
        write_hello(&mut send, mine).await.map_err(|error| lost(&error))?;
    }
    Ok(hello.record)
}

async fn write_hello(send: &mut SendStream, mine: &[u8]) -> Result<(), quinn::WriteError> {
    send.write_all(mine).await?;
    let _ = send.finish();
    Ok(())
}

/// Runs the hello on a new connection and reports it.
pub(crate) async fn greet(
    connection: Connection,
    door: Arc<Door>,
    hello: Hello,
    dialled: Option<(SocketAddr, Option<HostId>)>,
    events: mpsc::Sender<Event>,
) {
    let address = connection.remote_address();
    let expected = dialled.and_then(|(_, host)| host);
    if let (Some(expected), Some(found)) = (expected, peer_of(&connection))
        && expected != found
    {
        connection.close(VarInt::from_u32(BAD_HELLO), b"another key was expected");
        let refused = Refused::Key {
            address,
            expected,
            found,
        };
        let _ = events
            .send(Event::DialFailed(Some(expected), address, Some(refused)))
            .await;
        return;
    }
    let mine = hello_bytes(&hello);
    let result = match tokio::time::timeout(
        HELLO_TIMEOUT,
        exchange(&connection, &door, &mine, dialled.is_some()),
    )
    .await
    {
        Ok(result) => result,
        Err(_) => Err((BAD_HELLO, "no hello in time".to_owned())),
    };
    match result {
        Ok(record) => {
            let host = record.host;
            let link = Link {
                host,
                connection,
                dialled: dialled.map(|(address, _)| address),
            };
            let _ = events.send(Event::Up(Box::new(link), record)).await;
        }
        Err((code, reason)) => {
            // The other side may have closed first, with its own reason.
            let theirs = match connection.close_reason() {
                Some(quinn::ConnectionError::ApplicationClosed(close)) => Some(close),
                _ => None,
            };
            connection.close(VarInt::from_u32(code), reason.as_bytes());
            if let Some((address, host)) = dialled {
                let refused = match theirs {
                    Some(close) => {
                        let text = String::from_utf8_lossy(&close.reason).into_owned();
                        match close.error_code.into_inner() as u32 {
                            WRONG_COLLECTIVE => unhex(&text).map(|theirs| Refused::Collective {
                                address,
                                ours: door.collective,
                                theirs,
                            }),
                            NO_TICKET => Some(Refused::Ticket(address)),
                            MYSELF => None,
                            _ => Some(Refused::Protocol(address, text)),
                        }
                    }
                    None if code == MYSELF => None,
                    None => Some(Refused::Protocol(address, reason)),
                };
                let _ = events.send(Event::DialFailed(host, address, refused)).await;
            }
        }
    }
}

/// Moves frames between a connection and the driver until the connection ends.
pub(crate) async fn serve(
    host: HostId,
    connection: Connection,
    outbox: Arc<Outbox>,
    urgent: mpsc::Sender<Event>,
    bulk: mpsc::Sender<Event>,
) {
    let stable = connection.stable_id();
    tokio::select! {
        () = datagrams(host, &connection, &urgent) => {}
        () = streams(host, &connection, &urgent, &bulk) => {}
        () = write(&connection, &outbox, Class::Liveness, Class::Control) => {}
        () = write(&connection, &outbox, Class::Bulk, Class::Bulk) => {}
    }
    let _ = urgent.send(Event::Down(host, stable)).await;
}

async fn datagrams(host: HostId, connection: &Connection, events: &mpsc::Sender<Event>) {
    while let Ok(bytes) = connection.read_datagram().await {
        if events.send(Event::Datagram(host, bytes.to_vec())).await.is_err() {
            return;
        }
    }
}

async fn streams(
    host: HostId,
    connection: &Connection,
    urgent: &mpsc::Sender<Event>,
    bulk: &mpsc::Sender<Event>,
) {
    // A peer opens two, of which the first byte names the lane.
    let mut readers = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            stream = connection.accept_uni() => match stream {
                Ok(stream) => {
                    let (connection, urgent, bulk) = (connection.clone(), urgent.clone(), bulk.clone());
                    readers.spawn(async move {
                        if !read(host, stream, &urgent, &bulk).await {
                            connection.close(VarInt::from_u32(VIOLATION), b"malformed stream");
                        }
                    });
                }
                Err(_) => return,
            },
            Some(_) = readers.join_next(), if !readers.is_empty() => {}
        }
    }
}

/// Returns false when the peer broke the framing.
async fn read(
    host: HostId,
    mut stream: RecvStream,
    urgent: &mpsc::Sender<Event>,
    bulk: &mpsc::Sender<Event>,
) -> bool {
    let mut lane = [0];
    if stream.read_exact(&mut lane).await.is_err() {
        return true;
    }
    let events = match lane[0] {
        0 => urgent,
        1 => bulk,
        _ => return false,
    };
    loop {
        let mut header = [0; FRAME_HEADER];
        if stream.read_exact(&mut header).await.is_err() {
            return true;
        }
        let Ok(len) = Frame::len_of(&header) else {
            return false;
        };
        // The frame grows as its bytes come: a declared length alone takes no memory.
        let mut frame = Vec::with_capacity(len.min(64 << 10));
        frame.extend_from_slice(&header);
        while frame.len() < len {
            match stream.read_chunk(len - frame.len(), true).await {
                Ok(Some(chunk)) => frame.extend_from_slice(&chunk.bytes),
                _ => return true,
            }
        }
        if events.send(Event::Frame(host, frame)).await.is_err() {
            return true;
        }
    }
}

async fn write(connection: &Connection, outbox: &Outbox, from: Class, to: Class) {
    let bulk = from == Class::Bulk;
    let notify = if bulk { &outbox.bulk } else { &outbox.urgent };
    let mut stream: Option<SendStream> = None;
    loop {
        let frame = lock(&outbox.queue).pop(from, to);
        let Some(frame) = frame else {
            notify.notified().await;
            continue;
        };
        let stream = match &mut stream {
            Some(stream) => stream,
            none => {
                let Ok(mut opened) = connection.open_uni().await else {
                    return;
                };
                let _ = opened.set_priority(i32::from(!bulk));
                if opened.write_all(&[u8::from(bulk)]).await.is_err() {
                    return;
                }
                none.insert(opened)
            }
        };
        if stream.write_all(&frame).await.is_err() {
            return;
        }
    }
}
