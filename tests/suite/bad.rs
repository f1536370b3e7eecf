//! Damaged texts that every reader must answer with one typed error.

use partition::Result;

/// `text` cut off after each tenth of a percent of its bytes (each tenth byte of a short one) must
/// be an error of one line.
pub(crate) fn truncations(text: &[u8], read: impl Fn(&[u8]) -> Result<()>) {
    let whole = text.trim_ascii_end();
    for end in (0..whole.len()).step_by((whole.len() / 1000).max(10)) {
        let error = read(&whole[..end]).expect_err("a truncated text was accepted").to_string();
        assert!(!error.is_empty() && !error.contains('\n'), "{error}");
    }
}

/// Texts that are no model of any kind.
pub(crate) fn nonsense(read: impl Fn(&[u8]) -> Result<()>) {
    let brackets = vec![b'['; 10_000_000];
    let braces = b"{\"a\":".repeat(2_000_000);
    let texts: [&[u8]; 9] =
        [b"", b" ", b"null", b"17", b"\"text\"", b"{}", b"[]", b"\xff\xfe\x00", b"{\"config\":1e999}"];
    for text in texts.into_iter().chain([&brackets[..], &braces[..]]) {
        let error = read(text).expect_err("nonsense was accepted").to_string();
        assert!(!error.is_empty() && !error.contains('\n') && error.len() < 2000, "{error}");
    }
}
