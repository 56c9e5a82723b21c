//! Comes in at a server by every way that Rust's Flight client has, and says what came of each: a line of the way's
//! name, a tab, and "ok ROWS BYTES", or a status and its message. Arguments: port, CA, certificate, key. The token is
//! in CLIENT_TOKEN.

use arrow_array::{Array, LargeBinaryArray};
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightClient, FlightDescriptor, HandshakeRequest, Ticket};
use base64::prelude::{Engine, BASE64_STANDARD, BASE64_STANDARD_NO_PAD};
use futures::TryStreamExt;
use std::{env, fs};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tonic::{Code, Request, Status};

type Sum = Result<(usize, usize), Status>;

struct Server {
    port: String,
    root: Vec<u8>,
    identity: (Vec<u8>, Vec<u8>),
}

enum How {
    Plain,
    Encrypted,
    Certified,
}

fn status(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        other => Status::internal(other.to_string()),
    }
}

impl Server {
    async fn connect(&self, how: How) -> Result<FlightServiceClient<Channel>, Status> {
        let scheme = if let How::Plain = how { "http" } else { "https" };
        let mut endpoint = Channel::from_shared(format!("{scheme}://127.0.0.1:{}", self.port)).unwrap();
        if scheme == "https" {
            let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.root));
            if let How::Certified = how {
                tls = tls.identity(Identity::from_pem(&self.identity.0, &self.identity.1));
            }
            endpoint = endpoint.tls_config(tls).map_err(|e| Status::internal(e.to_string()))?;
        }
        let channel = endpoint.connect().await.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX))
    }

    /// A client whose calls carry a token, if there is one.
    async fn client(&self, how: How, token: Option<&str>) -> Result<FlightClient, Status> {
        let mut client = FlightClient::new_from_inner(self.connect(how).await?);
        if let Some(token) = token {
            client.add_header("authorization", &format!("Bearer {token}")).map_err(status)?;
        }
        Ok(client)
    }

    /// The token that a handshake gives for a name and a password.
    async fn login(&self, user: &str, password: &str, padded: bool) -> Result<String, Status> {
        let pair = format!("{user}:{password}");
        let encoded = if padded { BASE64_STANDARD.encode(pair) } else { BASE64_STANDARD_NO_PAD.encode(pair) };
        let mut request = Request::new(futures::stream::iter([HandshakeRequest::default()]));
        request.metadata_mut().insert("authorization", format!("Basic {encoded}").parse().unwrap());
        let answer = self.connect(How::Encrypted).await?.handshake(request).await?;
        let bearer = answer.metadata().get("authorization").ok_or(Status::internal("no authorization in the answer"))?;
        Ok(bearer.to_str().unwrap().trim_start_matches("Bearer ").to_string())
    }

    async fn endpoints(&self, how: How, token: Option<&str>) -> Sum {
        let mut client = self.client(how, token).await?;
        let path = FlightDescriptor::new_path(vec!["seen".into(), "train".into()]);
        let mut sum = (0, 0);
        for endpoint in client.get_flight_info(path).await.map_err(status)?.endpoint {
            let got = read(&mut client, endpoint.ticket.unwrap()).await?;
            sum = (sum.0 + got.0, sum.1 + got.1);
        }
        Ok(sum)
    }

    async fn basic(&self, user: &str, password: &str, padded: bool) -> Sum {
        let token = self.login(user, password, padded).await?;
        self.endpoints(How::Encrypted, Some(&token)).await
    }

    async fn get(&self, token: &str, ticket: &str) -> Sum {
        let mut client = self.client(How::Encrypted, Some(token)).await?;
        read(&mut client, Ticket::new(ticket.to_string())).await
    }
}

async fn read(client: &mut FlightClient, ticket: Ticket) -> Sum {
    let mut stream = client.do_get(ticket).await.map_err(status)?;
    let (mut rows, mut bytes) = (0, 0);
    while let Some(batch) = stream.try_next().await.map_err(status)? {
        rows += batch.num_rows();
        if let Some(images) = batch.column_by_name("image").and_then(|c| c.as_any().downcast_ref::<LargeBinaryArray>()) {
            bytes += (0..images.len()).map(|i| images.value(i).len()).sum::<usize>();
        }
    }
    Ok((rows, bytes))
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Unauthenticated => "UNAUTHENTICATED",
        Code::NotFound => "NOT_FOUND",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::Unavailable => "UNAVAILABLE",
        _ => "OTHER",
    }
}

fn report(name: &str, got: Sum) {
    match got {
        Ok((rows, bytes)) => println!("{name}\tok {rows} {bytes}"),
        Err(s) => println!("{name}\t{} {}", code(s.code()), s.message().replace('\n', " ")),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = env::args().collect();
    let file = |i: usize| fs::read(&args[i]).unwrap();
    let server = Server { port: args[1].clone(), root: file(2), identity: (file(3), file(4)) };
    let token = env::var("CLIENT_TOKEN").unwrap();
    let good = Some(token.as_str());

    report("bearer", server.endpoints(How::Encrypted, good).await);
    report("basic", server.basic("alice", &token, true).await);
    report("basic, any user", server.basic("token", &token, true).await);
    report("basic, no padding", server.basic("alice", &token, false).await);
    report("by hand", server.get(&token, r#"{"dataset": "seen"}"#).await);
    report("certificate", server.endpoints(How::Certified, None).await);

    report("no token", server.endpoints(How::Encrypted, None).await);
    report("wrong token", server.endpoints(How::Encrypted, Some(&token[1..])).await);
    report("wrong password", server.basic("alice", "wrong", true).await);
    report("another's password", server.basic("bob", &token, true).await);
    report("wrong token beside a certificate", server.endpoints(How::Certified, Some("wrong")).await);
    report("in plain", server.endpoints(How::Plain, good).await);

    for (what, hidden, absent) in [
        ("dataset", r#"{"dataset": "zzz1"}"#, r#"{"dataset": "zzz2"}"#),
        ("row", r#"{"dataset": "seen", "where": "position == 7"}"#, r#"{"dataset": "seen", "where": "position == 70"}"#),
        (
            "listed row",
            r#"{"dataset": "seen", "selection": {"positions": [7]}}"#,
            r#"{"dataset": "seen", "selection": {"positions": [70]}}"#,
        ),
        ("column", r#"{"dataset": "seen", "columns": ["name"]}"#, r#"{"dataset": "seen", "columns": ["nome"]}"#),
    ] {
        report(&format!("hidden {what}"), server.get(&token, hidden).await);
        report(&format!("absent {what}"), server.get(&token, absent).await);
    }
}
