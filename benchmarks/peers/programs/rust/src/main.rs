//! Reads one stretch of a binlog with mysql_cdc or mysql_async, every row decoded.
//!
//!     rust_readers mysql_cdc|mysql_async HOST PORT USER PASSWORD FILE OFFSET TABLE ROWS
//!
//! Prints one JSON line: rows, and the seconds and the CPU seconds from the first row to the last.

use std::env;
use std::error::Error;
use std::process::exit;
use std::time::Instant;

use futures_util::StreamExt;
use mysql_async::binlog::events::EventData;
use mysql_async::{BinlogStreamRequest, Conn, OptsBuilder};
use mysql_cdc::binlog_client::BinlogClient;
use mysql_cdc::binlog_options::BinlogOptions;
use mysql_cdc::events::binlog_event::BinlogEvent;
use mysql_cdc::replica_options::ReplicaOptions;
use mysql_cdc::ssl_mode::SslMode;

struct Clock {
    wanted: usize,
    rows: usize,
    begun: Option<(usize, Instant, f64)>,
}

impl Clock {
    fn count(&mut self, rows: usize) {
        self.rows += rows;
        let now = self.rows;
        let (first, started, cpu) = *self
            .begun
            .get_or_insert_with(|| (now, Instant::now(), cpu_seconds()));
        if self.rows >= self.wanted {
            println!(
                "{{\"rows\": {}, \"seconds\": {:.6}, \"cpu_seconds\": {:.6}}}",
                self.rows - first,
                started.elapsed().as_secs_f64(),
                cpu_seconds() - cpu
            );
            exit(0);
        }
    }
}

fn cpu_seconds() -> f64 {
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn read_with_mysql_cdc(a: &[String], mut clock: Clock) -> Result<(), Box<dyn Error>> {
    let mut client = BinlogClient::new(ReplicaOptions {
        hostname: a[1].clone(),
        port: a[2].parse()?,
        username: a[3].clone(),
        password: a[4].clone(),
        ssl_mode: SslMode::Disabled,
        server_id: 4350,
        blocking: true,
        binlog: BinlogOptions::from_position(a[5].clone(), a[6].parse()?),
        ..Default::default()
    });
    for found in client.replicate().map_err(|e| format!("{e:?}"))? {
        let (_, event) = found.map_err(|e| format!("{e:?}"))?;
        if let BinlogEvent::WriteRowsEvent(event) = event {
            clock.count(event.rows.len());
        }
    }
    Err("the stream ended".into())
}

async fn read_with_mysql_async(a: &[String], mut clock: Clock) -> Result<(), Box<dyn Error>> {
    let options = OptsBuilder::default()
        .ip_or_hostname(a[1].clone())
        .tcp_port(a[2].parse()?)
        .user(Some(a[3].clone()))
        .pass(Some(a[4].clone()))
        .prefer_socket(Some(false));
    let request = BinlogStreamRequest::new(4360)
        .with_filename(a[5].as_bytes())
        .with_pos(a[6].parse()?);
    let mut stream = Conn::new(options).await?.get_binlog_stream(request).await?;
    while let Some(event) = stream.next().await {
        if let Some(EventData::RowsEvent(rows)) = event?.read_data()? {
            let Some(table) = stream.get_tme(rows.table_id()) else {
                return Err("rows of an unknown table".into());
            };
            let mut count = 0;
            for row in rows.rows(table) {
                let (_, after) = row?;
                std::hint::black_box(after);
                count += 1;
            }
            clock.count(count);
        }
    }
    Err("the stream ended".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let a: Vec<String> = env::args().skip(1).collect();
    if a.len() != 9 {
        return Err("usage: mysql_cdc|mysql_async HOST PORT USER PASSWORD FILE OFFSET TABLE ROWS".into());
    }
    let clock = Clock { wanted: a[8].parse()?, rows: 0, begun: None };
    if a[0] == "mysql_cdc" {
        return read_with_mysql_cdc(&a, clock);
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(read_with_mysql_async(&a, clock))
}
