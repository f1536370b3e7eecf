//! ONNX files as trees of fields, so that one field can be changed and all others stay as they are.

/// A message of ONNX that holds numbers or other messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    ValueInfo,
    Type,
    TensorType,
    Shape,
    Dimension,
    Function,
    OpsetImport,
}

impl Kind {
    /// The message in a field of this one.
    fn inner(self, tag: u64) -> Option<Self> {
        Some(match (self, tag) {
            (Self::Model, 7) | (Self::Attribute, 6 | 11) => Self::Graph,
            (Self::Model, 8) | (Self::Function, 9) => Self::OpsetImport,
            (Self::Model, 25) => Self::Function,
            (Self::Graph, 1) | (Self::Function, 7) => Self::Node,
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) => Self::Tensor,
            (Self::Graph, 11..=13) => Self::ValueInfo,
            (Self::Node, 5) | (Self::Function, 11) => Self::Attribute,
            (Self::ValueInfo, 2) => Self::Type,
            (Self::Type, 1) => Self::TensorType,
            (Self::TensorType, 2) => Self::Shape,
            (Self::Shape, 1) => Self::Dimension,
            _ => return None,
        })
    }

    /// Whether a field of this one is a list of numbers, which may stand in one piece.
    pub(crate) fn is_list(self, tag: u64) -> bool {
        matches!((self, tag), (Self::Attribute, 8) | (Self::Tensor, 1 | 5 | 7))
    }
}

/// A field's content.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Number(u64),
    Four([u8; 4]),
    Eight([u8; 8]),
    Bytes(Vec<u8>),
    /// A list of numbers in one piece.
    List(Vec<u64>),
    Message(Message),
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) tag: u64,
    pub(crate) content: Content,
}

/// A message with its fields in order.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) fields: Vec<Field>,
}

impl Message {
    /// The message in these bytes; none where they are no protobuf.
    pub(crate) fn read(kind: Kind, mut bytes: &[u8]) -> Option<Self> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = number(&mut bytes)?;
            let tag = key >> 3;
            let content = match key & 7 {
                0 => Content::Number(number(&mut bytes)?),
                1 => Content::Eight(taken(&mut bytes, 8)?.try_into().ok()?),
                2 => {
                    let length = usize::try_from(number(&mut bytes)?).ok()?;
                    content(kind, tag, taken(&mut bytes, length)?)
                }
                5 => Content::Four(taken(&mut bytes, 4)?.try_into().ok()?),
                _ => return None,
            };
            fields.push(Field { tag, content });
        }
        Some(Self { kind, fields })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for Field { tag, content } in &self.fields {
            let mut key = |wire: u64| put(tag << 3 | wire, &mut out);
            let bytes = match content {
                Content::Number(value) => {
                    key(0);
                    put(*value, &mut out);
                    continue;
                }
                Content::Four(bytes) => {
                    key(5);
                    out.extend(bytes);
                    continue;
                }
                Content::Eight(bytes) => {
                    key(1);
                    out.extend(bytes);
                    continue;
                }
                Content::Bytes(bytes) => bytes.clone(),
                Content::List(values) => {
                    let mut bytes = Vec::new();
                    values.iter().for_each(|&value| put(value, &mut bytes));
                    bytes
                }
                Content::Message(inner) => inner.write(),
            };
            key(2);
            put(bytes.len() as u64, &mut out);
            out.extend(bytes);
        }
        out
    }
}

fn content(kind: Kind, tag: u64, bytes: &[u8]) -> Content {
    let inner = kind.inner(tag).and_then(|inner| Message::read(inner, bytes));
    if let Some(message) = inner {
        return Content::Message(message);
    }
    let list = || {
        let (mut rest, mut values) = (bytes, Vec::new());
        while !rest.is_empty() {
            values.push(number(&mut rest)?);
        }
        Some(values)
    };
    match kind.is_list(tag).then(list).flatten() {
        Some(values) => Content::List(values),
        None => Content::Bytes(bytes.to_vec()),
    }
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(bytes).ok()
}

fn taken<'b>(bytes: &mut &'b [u8], length: usize) -> Option<&'b [u8]> {
    let (first, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(first)
}

fn put(value: u64, out: &mut Vec<u8>) {
    prost::encoding::encode_varint(value, out);
}

#[test]
fn what_is_read_is_written() {
    for file in ["random.onnx", "residual_norm.onnx"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
        let bytes = std::fs::read(path).unwrap();
        let message = Message::read(Kind::Model, &bytes).unwrap();
        assert_eq!(message.write(), bytes, "{file}");
        let graph = message.fields.iter().find(|field| field.tag == 7).unwrap();
        assert!(matches!(&graph.content, Content::Message(graph) if graph.kind == Kind::Graph));
    }
}
