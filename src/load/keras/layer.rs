//! The layers, a closed set, and how each is read.

use serde_json::{Map, Value};

use super::activation::Activation;
use super::attention::Attention;
use super::buckets::Buckets;
use super::config::{Asked, Config, KerasVersion, Policy, dtype, dtype_name, policy};
use super::conv::Conv;
use super::conv_lstm::ConvLstm;
use super::dense::{Dense, Embedding};
use super::dot_attention::DotAttention;
use super::einsum::EinsumDense;
use super::merge::Merge;
use super::network::{Network, Parser, keras2_arguments};
use super::noise::Disturb;
use super::norm::{AdaptedNorm, Affine, BatchNorm, GroupNorm, LayerNorm};
use super::operation::{Operation, Translated, translated};
use super::penalty::Training;
use super::pool::{AdaptivePool, GlobalPool, Pool};
use super::recurrent::{Bidirectional, Rnn};
use super::reshape::Rearrange;
use super::spectrogram::{Mel, Stft};
use crate::error::{Error, Result};
use crate::ir::{DType, Init, Real};

/// One layer of a model.
#[derive(Debug)]
pub(super) struct Layer {
    /// Unique over all nested models.
    pub(super) uid: usize,
    pub(super) name: String,
    pub(super) class: String,
    pub(super) policy: Policy,
    /// Whether training changes its weights.
    pub(super) trainable: bool,
    pub(super) training: Training,
    pub(super) kind: Kind,
}

/// Vectors of whole numbers are not longer.
const MOST_CATEGORIES: i64 = 1 << 24;

/// How whole numbers become vectors with an element for each number that there may be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Encoding {
    /// Each number a vector.
    OneHot,
    /// 1 where any of a row is that number.
    Any,
    /// How many of a row are.
    Count,
}

/// What a layer does.
#[derive(Debug)]
pub(super) enum Kind {
    Input(Input),
    /// Nothing.
    Identity,
    /// Steps whose elements all have this value do not count, and become 0.
    Masking(f64),
    /// Nothing at inference.
    Noise(Disturb),
    Dense(Dense),
    Embedding(Embedding),
    Activation(Activation),
    Prelu {
        init: Init,
        shared_axes: Vec<i64>,
    },
    /// `CategoryEncoding`: whole numbers as vectors.
    Categories {
        count: i64,
        mode: Encoding,
    },
    /// A factor for each channel (ConvNeXt).
    LayerScale {
        init: Init,
        channels: i64,
    },
    BatchNorm(BatchNorm),
    LayerNorm(LayerNorm),
    GroupNorm(GroupNorm),
    UnitNorm(Vec<i64>),
    AdaptedNorm(AdaptedNorm),
    Affine(Affine),
    Einsum(Box<EinsumDense>),
    DotAttention(DotAttention),
    Conv(Box<Conv>),
    Pool(Pool),
    AdaptivePool(AdaptivePool),
    GlobalPool(GlobalPool),
    Rearrange(Rearrange),
    Merge(Merge),
    Rnn(Box<Rnn>),
    /// From the lowest up.
    StackedRnn(Vec<Rnn>),
    ConvLstm(Box<ConvLstm>),
    Bidirectional(Box<Bidirectional>),
    TimeDistributed(Box<Layer>),
    /// Layers without weights, one after the other.
    Pipeline(Vec<Layer>),
    /// `SpectralNormalization`: at inference the layer itself, whose weights are stored divided.
    Spectral(Box<Layer>),
    Buckets(Buckets),
    Mel(Box<Mel>),
    Stft(Box<Stft>),
    Attention(Box<Attention>),
    Operation(Operation),
    Model(Box<Network>),
    /// Already reported; never lowered.
    Unknown,
}

impl Kind {
    /// Whether inputs are taken as they are: by layers of integers, by those that only move elements, and by wrappers, whose
    /// layers see to it.
    pub(super) const fn takes_any_type(&self) -> bool {
        matches!(
            self,
            Self::Embedding(_)
                | Self::Categories { .. }
                | Self::Buckets(_)
                | Self::Masking(_)
                | Self::Identity
                | Self::Noise(_)
                | Self::Rearrange(_)
                | Self::Attention(_)
                | Self::TimeDistributed(_)
                | Self::Pipeline(_)
        )
    }
}

/// An input of a model.
#[derive(Debug)]
pub(super) struct Input {
    /// None where the model does not say and the caller decides.
    pub(super) shape: Option<Vec<Option<i64>>>,
    pub(super) dtype: DType,
    /// Made up by this reader: the file has no such layer.
    pub(super) implied: bool,
}

impl Parser<'_> {
    /// Reads one layer: `{"class_name", "config", ...}`.
    pub(super) fn layer(&mut self, value: &Value, place: &str) -> Result<Layer> {
        let outer = Config::of(value, place)?;
        let class = outer.text("class_name")?.ok_or_else(|| outer.missing("class_name"))?;
        let empty = Map::new();
        let fields = match outer.get("config") {
            Some(Value::Object(fields)) => fields,
            None => &empty,
            // Sequential models of the first Keras versions: the list of layers itself.
            Some(Value::Array(_)) if class == "Sequential" => &empty,
            Some(_) => return Err(outer.fault("config", "expected an object")),
        };
        let inner_name = fields.get("name").and_then(Value::as_str);
        let name = match outer.text("name")?.or(inner_name) {
            Some("") => return Err(outer.fault("name", "is empty")),
            Some(name) => name.to_owned(),
            None => self.made_up_name(class),
        };
        let place = format!("layer {name} ({class})");
        let asked = Asked::default();
        let config = Config::new(fields, &place).noting(&asked);
        let module = outer.text("module")?.unwrap_or("");
        let policy = match class {
            "Sequential" | "Functional" | "Model" | "InputLayer" => Policy::default(),
            _ => policy(config, self.unsupported)?,
        };
        let kind = match class {
            "Sequential" | "Functional" | "Model" => match value {
                Value::Object(object) => Kind::Model(Box::new(self.network(object, &place)?)),
                _ => return Err(outer.fault("config", "expected an object")),
            },
            "InputLayer" => self.kind(class, config)?,
            _ if module.contains(".ops.")
                || module.ends_with(".ops")
                || self.is_operation(value, module, config) =>
            {
                match self.operation(class, config)? {
                    Some(operation) => Kind::Operation(operation),
                    // Some layers leave out what others have.
                    None if module.is_empty() => self.kind(class, config)?,
                    None => {
                        self.unsupported.add(&place, format!("function {class} of keras.ops"));
                        Kind::Unknown
                    }
                }
            }
            "TFOpLambda" | "SlicingOpLambda" => self.function(value, config)?,
            _ => self.kind(class, config)?,
        };
        // A layer that runs in both directions trains what its own layers say, in Keras too.
        let trainable = config.flag("trainable", true)? || matches!(kind, Kind::Bidirectional(_));
        let training = match &kind {
            Kind::Model(_) | Kind::Operation(_) | Kind::Unknown => Training::default(),
            _ => Training::read(class, config)?,
        };
        // What layers of random numbers do is done in training alone.
        let is_passed = matches!(kind, Kind::Model(_) | Kind::Operation(_) | Kind::Unknown);
        if !is_passed && !class.starts_with("Random") {
            config.unasked().iter().for_each(|field| self.unsupported.add(&place, field));
        }
        let (uid, class) = (self.next_uid(), class.to_owned());
        Ok(Layer { uid, name, class, policy, trainable, training, kind })
    }

    /// HDF5 files of Keras 3 do not say where a class is from: layers have fields that operations have not.
    fn is_operation(&self, layer: &Value, module: &str, config: Config<'_>) -> bool {
        let is_called = layer.get("inbound_nodes").and_then(|nodes| nodes.get(0)?.get("args")).is_some();
        is_called
            && self.version == KerasVersion::Three
            && module.is_empty()
            && !config.has("trainable")
            && !config.has("dtype_policy")
    }

    /// A function with all that its configuration says; none where it is not supported.
    fn operation(&mut self, class: &str, config: Config<'_>) -> Result<Option<Operation>> {
        let asked = Asked::default();
        let config = config.noting(&asked);
        let found = Operation::read(class, config, self.unsupported)?;
        if found.is_some() {
            config.unasked().iter().for_each(|field| self.unsupported.add(config.place(), field));
        }
        Ok(found)
    }

    /// A function of TensorFlow, whose attributes stand in its call.
    fn function(&mut self, layer: &Value, config: Config<'_>) -> Result<Kind> {
        let function = config.text("function")?.ok_or_else(|| config.missing("function"))?;
        let none = Map::new();
        let arguments = layer.get("inbound_nodes").and_then(keras2_arguments).unwrap_or(&none);
        let translated = match translated(function, arguments) {
            Ok(translated) => translated,
            Err(what) => {
                self.unsupported.add(config.place(), what);
                return Ok(Kind::Unknown);
            }
        };
        let Translated { class, config: own, .. } = translated;
        match self.operation(class, Config::new(&own, config.place()))? {
            Some(operation) => Ok(Kind::Operation(operation)),
            None => {
                self.unsupported.add(config.place(), format!("function tf.{function} with these attributes"));
                Ok(Kind::Unknown)
            }
        }
    }

    fn kind(&mut self, class: &str, config: Config<'_>) -> Result<Kind> {
        let version = self.version;
        if let Some(activation) = Activation::layer(class, config, version, self.unsupported)? {
            return Ok(Kind::Activation(activation));
        }
        Ok(match class {
            "InputLayer" => Kind::Input(self.input(config)?),
            "Dropout" | "SpatialDropout1D" | "SpatialDropout2D" | "SpatialDropout3D" | "GaussianNoise"
            | "GaussianDropout" | "AlphaDropout" => Kind::Noise(Disturb::read(class, config)?),
            "ActivityRegularization" | "Identity" => Kind::Identity,
            "RandomCrop" if version == KerasVersion::Two => Kind::Rearrange(Rearrange::cropped(config)?),
            // Images are changed at random in training alone.
            "RandomFlip"
            | "RandomRotation"
            | "RandomZoom"
            | "RandomCrop"
            | "RandomTranslation"
            | "RandomContrast"
            | "RandomBrightness"
            | "RandomHeight"
            | "RandomWidth"
            | "RandomShear"
            | "RandomHue"
            | "RandomSaturation"
            | "RandomColorJitter"
            | "RandomGrayscale"
            | "RandomInvert"
            | "RandomPosterization"
            | "RandomSharpness"
            | "RandomErasing"
            | "RandomGaussianBlur"
            | "RandomColorDegeneration"
            | "RandomPerspective"
            | "RandomElasticTransform" => Kind::Identity,
            "Masking" => Kind::Masking(config.real_or("mask_value", 0.0)?),
            "Dense" => Kind::Dense(Dense::read(config, version, self.unsupported)?),
            "Embedding" => Kind::Embedding(Embedding::read(config, self.unsupported)?),
            "ReversibleEmbedding" => Kind::Embedding(Embedding::reversible(config, self.unsupported)?),
            "PReLU" => Kind::Prelu {
                init: super::init::initialiser(config, "alpha_initializer", Init::zeros(), self.unsupported)?,
                shared_axes: config.int_or_ints("shared_axes")?.unwrap_or_default(),
            },
            "CategoryEncoding" => Kind::Categories {
                count: match config.positive("num_tokens")? {
                    count if count <= MOST_CATEGORIES => count,
                    count => return Err(config.fault("num_tokens", format!("{count} is too many"))),
                },
                mode: match config.text("output_mode")?.unwrap_or("multi_hot") {
                    "one_hot" => Encoding::OneHot,
                    "multi_hot" => Encoding::Any,
                    "count" => Encoding::Count,
                    other => return Err(config.fault("output_mode", format!("{other} is not known"))),
                },
            },
            "LayerScale" => Kind::LayerScale {
                init: Init::Constant(Real(config.real_or("init_values", 1.0)?)),
                channels: config.positive("projection_dim")?,
            },
            "BatchNormalization" | "SyncBatchNormalization" => {
                Kind::BatchNorm(BatchNorm::read(config, self.unsupported)?)
            }
            "LayerNormalization" => Kind::LayerNorm(LayerNorm::read(config, false, self.unsupported)?),
            "RMSNormalization" => Kind::LayerNorm(LayerNorm::read(config, true, self.unsupported)?),
            "Rescaling" => Kind::Affine(Affine::rescaling(config)?),
            "Normalization" if config.get("mean").is_none() && config.get("variance").is_none() => {
                Kind::AdaptedNorm(AdaptedNorm::read(config)?)
            }
            "Normalization" => Kind::Affine(Affine::normalization(config, self.unsupported)?),
            "GroupNormalization" => Kind::GroupNorm(GroupNorm::read(config, self.unsupported)?),
            "UnitNormalization" => Kind::UnitNorm(config.int_or_ints("axis")?.unwrap_or_else(|| vec![-1])),
            "EinsumDense" => Kind::Einsum(Box::new(EinsumDense::read(config, version, self.unsupported)?)),
            "Attention" => Kind::DotAttention(DotAttention::read(config, self.unsupported)?),
            "AdditiveAttention" => Kind::DotAttention(DotAttention::additive(config)?),
            "Conv1D"
            | "Conv2D"
            | "Conv3D"
            | "Convolution1D"
            | "Convolution2D"
            | "Convolution3D"
            | "DepthwiseConv1D"
            | "DepthwiseConv2D"
            | "SeparableConv1D"
            | "SeparableConv2D"
            | "SeparableConvolution1D"
            | "SeparableConvolution2D"
            | "Conv1DTranspose"
            | "Conv2DTranspose"
            | "Conv3DTranspose"
            | "Convolution2DTranspose"
            | "Convolution3DTranspose" => {
                Kind::Conv(Box::new(Conv::read(class, config, version, self.unsupported)?))
            }
            "MaxPooling1D" | "MaxPooling2D" | "MaxPooling3D" | "AveragePooling1D" | "AveragePooling2D"
            | "AveragePooling3D" | "MaxPool1D" | "MaxPool2D" | "MaxPool3D" | "AvgPool1D" | "AvgPool2D"
            | "AvgPool3D" => Kind::Pool(Pool::read(class, config, self.unsupported)?),
            "AdaptiveAveragePooling1D"
            | "AdaptiveAveragePooling2D"
            | "AdaptiveAveragePooling3D"
            | "AdaptiveMaxPooling1D"
            | "AdaptiveMaxPooling2D"
            | "AdaptiveMaxPooling3D" => Kind::AdaptivePool(AdaptivePool::read(class, config)?),
            "GlobalMaxPooling1D"
            | "GlobalMaxPooling2D"
            | "GlobalMaxPooling3D"
            | "GlobalAveragePooling1D"
            | "GlobalAveragePooling2D"
            | "GlobalAveragePooling3D"
            | "GlobalMaxPool1D"
            | "GlobalMaxPool2D"
            | "GlobalMaxPool3D"
            | "GlobalAvgPool1D"
            | "GlobalAvgPool2D"
            | "GlobalAvgPool3D" => Kind::GlobalPool(GlobalPool::read(class, config)?),
            "Add" | "Subtract" | "Multiply" | "Average" | "Maximum" | "Minimum" | "Concatenate" | "Dot"
            | "CustomScaleLayer" => Kind::Merge(Merge::read(class, config)?),
            "LSTM" | "GRU" | "SimpleRNN" => {
                Kind::Rnn(Box::new(Rnn::read(class, config, version, self.unsupported)?))
            }
            "ConvLSTM1D" | "ConvLSTM2D" | "ConvLSTM3D" => {
                Kind::ConvLstm(Box::new(ConvLstm::read(class, config, version, self.unsupported)?))
            }
            "RNN" => self.around_cell(config)?,
            "Lambda" => {
                self.unsupported.add(
                    config.place(),
                    "a Lambda holds Python code, which is not run: keras.ops, or an export to ONNX",
                );
                Kind::Unknown
            }
            "Bidirectional" => {
                self.bidirectional(config)?.map_or(Kind::Unknown, |both| Kind::Bidirectional(Box::new(both)))
            }
            "TimeDistributed" => {
                let inner = config.get("layer").ok_or_else(|| config.missing("layer"))?;
                Kind::TimeDistributed(Box::new(self.layer(inner, config.place())?))
            }
            "Pipeline" => {
                let layers =
                    config.get("layers").and_then(Value::as_array).ok_or_else(|| config.missing("layers"))?;
                let layers = layers.iter().map(|layer| self.layer(layer, config.place()));
                Kind::Pipeline(layers.collect::<Result<_>>()?)
            }
            "SpectralNormalization" => {
                let inner = config.get("layer").ok_or_else(|| config.missing("layer"))?;
                Kind::Spectral(Box::new(self.layer(inner, config.place())?))
            }
            "MelSpectrogram" => Kind::Mel(Box::new(Mel::read(config, self.unsupported)?)),
            "STFTSpectrogram" => Kind::Stft(Box::new(Stft::read(config, self.unsupported)?)),
            "Discretization" | "IntegerLookup" => match Buckets::read(class, config, self.unsupported)? {
                Some(buckets) => Kind::Buckets(buckets),
                None => Kind::Unknown,
            },
            "Hashing" => {
                self.unsupported.add(config.place(), "a hash of texts, which is not computed");
                Kind::Unknown
            }
            "MultiHeadAttention" => Kind::Attention(Box::new(Attention::read(config, self.unsupported)?)),
            "GroupQueryAttention" | "GroupedQueryAttention" => {
                Kind::Attention(Box::new(Attention::grouped(config, self.unsupported)?))
            }
            _ => match Rearrange::read(class, config, self.unsupported)? {
                Some(rearrange) => Kind::Rearrange(rearrange),
                None => {
                    self.unsupported.add(config.place(), "layer class not supported yet");
                    Kind::Unknown
                }
            },
        })
    }

    fn input(&mut self, config: Config<'_>) -> Result<Input> {
        for option in ["sparse", "ragged"] {
            if config.flag(option, false)? {
                self.unsupported.add(config.place(), format!("{option} inputs"));
            }
        }
        let shape = input_shape(config)?;
        let dtype = self.input_dtype(config)?;
        Ok(Input { shape, dtype, implied: false })
    }

    pub(super) fn input_dtype(&mut self, config: Config<'_>) -> Result<DType> {
        let Some(name) = dtype_name(config)? else { return Ok(DType::F32) };
        Ok(dtype(name).unwrap_or_else(|| {
            if !name.starts_with("mixed_") {
                self.unsupported.add(config.place(), format!("inputs of type {name}"));
            }
            DType::F32
        }))
    }
}

/// The shape of an input, with its batch dimension.
pub(super) fn input_shape(config: Config<'_>) -> Result<Option<Vec<Option<i64>>>> {
    let shape = match config.shape("batch_shape")? {
        Some(shape) => Some(shape),
        None => config.shape("batch_input_shape")?,
    };
    if shape.as_ref().is_some_and(Vec::is_empty) {
        return Err(config.fault("batch_shape", "has no batch dimension"));
    }
    Ok(shape)
}

/// A layer that a wrapper needs and does not have.
pub(super) fn no_layer(place: &str) -> Error {
    Error::format(place, "the wrapped layer is missing")
}
