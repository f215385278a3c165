use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use proptest::prelude::*;

use super::*;

const VERSION: u16 = 1;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const NO_REPLY: u32 = 0x10;

fn t4() -> Device {
    Device::new("t4".parse().unwrap(), true)
}

fn message(command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + payload.len()).unwrap();
    let mut bytes = 7u16.to_le_bytes().to_vec();
    bytes.extend(command.to_le_bytes());
    bytes.extend(words(&[size, flags, 0]));
    bytes.extend(payload);
    bytes
}

fn access(region: u32, offset: u64, count: u32) -> Vec<u8> {
    [offset.to_le_bytes().to_vec(), words(&[region, count])].concat()
}

/// Result of one command: the reply's payload, or its error.
fn ask(device: &mut Device, command: u16, payload: &[u8]) -> Result<Vec<u8>, Errno> {
    let request = Request::receive(&mut message(command, 0, payload).as_slice()).unwrap().unwrap();
    answer(device, &request)
}

/// Sends bytes in pieces to a server of a T4, and returns its end and all that it replied.
fn converse(pieces: &[Vec<u8>]) -> (io::Result<()>, Vec<u8>) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || serve(theirs, t4()));
    for piece in pieces {
        // Fails where the server has refused an earlier piece.
        let _ = ours.write_all(piece);
    }
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    let mut replies = Vec::new();
    // A server that ends with bytes unread resets the connection.
    let _ = ours.read_to_end(&mut replies);
    (server.join().unwrap(), replies)
}

#[test]
fn the_versions_of_both_sides_are_agreed_on() {
    for (version, agreed) in [
        ([0, 0, 1, 0], Some([0, 0, 1, 0])),
        ([0, 0, 0, 0], Some([0, 0, 0, 0])),
        ([0, 0, 9, 0], Some([0, 0, 1, 0])),
        ([1, 0, 0, 0], None),
    ] {
        let hello = [&version[..], b"{\"capabilities\":{}}\0"].concat();
        let reply = ask(&mut t4(), VERSION, &hello);
        assert_eq!(reply.as_ref().ok().map(|reply| &reply[..4]), agreed.as_ref().map(|a| &a[..]));
        if let Ok(reply) = reply {
            let (end, json) = reply[4..].split_last().unwrap();
            let limits: serde_json::Value = serde_json::from_slice(json).unwrap();
            assert_eq!((*end, &limits["capabilities"]["max_data_xfer_size"]), (0, &4096.into()));
        }
    }
}

#[test]
fn device_regions_and_interrupts_are_described() {
    let info = ask(&mut t4(), 4, &[0; 16]).unwrap();
    assert_eq!(info, words(&[16, 3, 9, 5]));
    for (region, size) in
        [(0, 16 << 20), (1, 256 << 20), (2, 32 << 20), (3, 0), (6, 0), (7, 256), (8, 0)]
    {
        let asked = words(&[32, 0, region, 0, 0, 0, 0, 0]);
        let info = ask(&mut t4(), 5, &asked).unwrap();
        let flags = if size > 0 { 3 } else { 0 };
        assert_eq!(info, words(&[32, flags, region, 0, size, 0, 0, 0]), "region {region}");
    }
    let mut deaf = Device::new("t4:no-irq".parse().unwrap(), true);
    for (index, count) in [(0, 1), (1, 0), (4, 0)] {
        let asked = words(&[16, 0, index, 0]);
        assert_eq!(ask(&mut t4(), 7, &asked).unwrap()[12], count, "index {index}");
        assert_eq!(ask(&mut deaf, 7, &asked).unwrap()[12], 0, "index {index}");
    }
}

#[test]
fn the_guests_accesses_reach_the_device() {
    let mut device = t4();
    let read = |device: &mut Device, region, offset, count| {
        let asked = access(region, offset, count);
        let reply = ask(device, REGION_READ, &asked).unwrap();
        assert_eq!(reply[..16], asked);
        reply[16..].to_vec()
    };
    assert_eq!(read(&mut device, 7, 0, 4), 0x1eb8_10deu32.to_le_bytes());
    assert_eq!(read(&mut device, 7, 0, 256).len(), 256);
    assert_eq!(read(&mut device, 0, 0xa00, 4), 0x164a_1000u32.to_le_bytes());
    assert_eq!(read(&mut device, 1, 0, 8), [0; 8]);
    let command = [access(7, 4, 2), vec![6, 0]].concat();
    assert_eq!(ask(&mut device, REGION_WRITE, &command).unwrap(), access(7, 4, 2));
    assert_eq!(read(&mut device, 7, 4, 2), [6, 0]);
    assert_eq!(ask(&mut device, 13, &[]), Ok(Vec::new()));
    assert_eq!(read(&mut device, 7, 4, 2), [0, 0], "after the reset");
    let register = [access(0, 0, 4), vec![1; 4]].concat();
    assert!(ask(&mut device, REGION_WRITE, &register).is_ok());
    assert_eq!(read(&mut device, 0, 0, 4), 0x1640_00a1u32.to_le_bytes());
}

#[test]
fn memory_and_interrupts_are_accepted_without_effect() {
    assert_eq!(ask(&mut t4(), 2, &[1; 32]), Ok(Vec::new()));
    assert_eq!(ask(&mut t4(), 3, &[1; 24]), Ok(vec![1; 24]));
    for (index, start, count, is_good) in [
        (0, 0, 1, true),
        (0, 0, 0, true),
        (0, 1, 1, false),
        (1, 0, 1, false),
        (0, u32::MAX, 1, false),
        (5, 0, 0, false),
    ] {
        let asked = words(&[20, 0x24, index, start, count]);
        assert_eq!(ask(&mut t4(), 8, &asked).is_ok(), is_good, "{index} {start} {count}");
    }
}

#[test]
fn accesses_outside_of_a_region_are_refused() {
    for (command, payload) in [
        (REGION_READ, access(7, 253, 4)),
        (REGION_READ, access(7, u64::MAX, 4)),
        (REGION_READ, access(0, 16 << 20, 1)),
        (REGION_READ, access(0, 0, 4097)),
        (REGION_READ, access(0, 0, u32::MAX)),
        (REGION_READ, access(3, 0, 1)),
        (REGION_READ, access(u32::MAX, 0, 1)),
        (REGION_READ, vec![0; 15]),
        (REGION_WRITE, access(7, 4, 2)),
        (REGION_WRITE, [access(7, 255, 2), vec![0; 2]].concat()),
        (VERSION, vec![0; 3]),
        (2, vec![0; 31]),
        (3, Vec::new()),
        (4, vec![0; 15]),
        (5, words(&[32, 0, 9])),
        (7, words(&[16, 0, 5, 0])),
        (7, words(&[16, 0, 3, 0])),
        (8, vec![0; 19]),
    ] {
        assert_eq!(ask(&mut t4(), command, &payload), Err(Errno::EINVAL), "{command} {payload:?}");
    }
    for command in [0, 6, 11, 12, 14, 16, u16::MAX] {
        assert_eq!(ask(&mut t4(), command, &[0; 64]), Err(Errno::ENOTSUP), "{command}");
    }
}

#[test]
fn a_refusal_names_the_error_and_the_next_command_is_answered() {
    let (end, replies) = converse(&[
        message(6, 0, &[0; 40]),
        message(REGION_READ, 0, &access(7, 0, 2)),
        message(13, NO_REPLY, &[]),
    ]);
    assert!(end.is_ok());
    let refused = [vec![7, 0, 6, 0], words(&[16, 0x21, Errno::ENOTSUP as u32])].concat();
    let read = [vec![7, 0, 9, 0], words(&[34, 1, 0]), access(7, 0, 2), vec![0xde, 0x10]].concat();
    assert_eq!(replies, [refused, read].concat());
}

#[test]
fn a_stream_that_is_not_of_the_protocol_ends_the_server() {
    let whole = message(REGION_READ, 0, &access(7, 0, 2));
    let sized = |size: u32| [&whole[..4], &size.to_le_bytes(), &whole[8..]].concat();
    for (bytes, says) in [
        (sized(15), "15 bytes"),
        (sized(8193), "8193 bytes"),
        (sized(u32::MAX), "4294967295 bytes"),
        (message(REGION_READ, 1, &[]), "flags 0x1"),
        (whole[..9].to_vec(), ""),
        (whole[..20].to_vec(), ""),
    ] {
        let (end, replies) = converse(&[bytes]);
        assert!(end.unwrap_err().to_string().contains(says), "{says}");
        assert_eq!(replies, [0; 0]);
    }
}

#[test]
fn a_message_may_arrive_in_pieces() {
    let whole = message(REGION_READ, 0, &access(7, 0, 2));
    let pieces = [whole[..3].to_vec(), whole[3..17].to_vec(), whole[17..].to_vec()];
    let (end, replies) = converse(&pieces);
    assert!(end.is_ok());
    assert_eq!(replies[replies.len() - 2..], [0xde, 0x10]);
}

#[test]
fn qemu_connects_by_the_path_alone_and_nothing_is_left_of_it() {
    let attached = VfioUser.attach(t4(), &mut Sockets::default()).unwrap();
    let argument: serde_json::Value = serde_json::from_str(&attached.argument).unwrap();
    assert_eq!(
        (&argument["driver"], &argument["socket"]["type"]),
        (&"vfio-user-pci".into(), &"unix".into())
    );
    let path = Path::new(argument["socket"]["path"].as_str().unwrap());
    let mode = path.parent().unwrap().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let server = thread::spawn(attached.serve);
    let mut link = UnixStream::connect(path).unwrap();
    link.write_all(&message(REGION_READ, 0, &access(7, 0, 2))).unwrap();
    let mut reply = [0; 34];
    link.read_exact(&mut reply).unwrap();
    assert_eq!(reply[32..], [0xde, 0x10]);
    assert!(!path.parent().unwrap().exists());
    drop(link);
    assert!(server.join().unwrap().is_ok());
}

#[test]
fn a_server_that_nobody_connects_to_can_be_ended() {
    let attached = VfioUser.attach(t4(), &mut Sockets::default()).unwrap();
    let argument: serde_json::Value = serde_json::from_str(&attached.argument).unwrap();
    let dir = Path::new(argument["socket"]["path"].as_str().unwrap()).parent().unwrap().to_owned();
    let server = thread::spawn(attached.serve);
    attached.link.end();
    assert!(server.join().unwrap().is_err());
    assert!(!dir.exists());
}

proptest! {
    #[test]
    fn no_payload_makes_the_server_panic(
        command in 0u16..17,
        payload in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        // The reply to any command fits the longest message.
        if let Ok(reply) = ask(&mut t4(), command, &payload) {
            prop_assert!(reply.len() <= MESSAGE_MAX / 2 + 16);
        }
    }

    #[test]
    fn no_stream_makes_the_server_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let mut stream = bytes.as_slice();
        while let Ok(Some(request)) = Request::receive(&mut stream) {
            prop_assert!(request.reply(answer(&mut t4(), &request)).len() <= MESSAGE_MAX);
        }
    }
}
