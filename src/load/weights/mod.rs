//! Arrays in npz and safetensors files.
