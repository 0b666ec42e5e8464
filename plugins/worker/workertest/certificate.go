package workertest

import (
	"crypto/sha256"
	"encoding/hex"

	"google.golang.org/protobuf/proto"

	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
)

// Configuration gives a small valid configuration for a worker on the CPU.
func Configuration(role workerv1.Role, rank, generation uint32) *workerv1.Configuration {
	return &workerv1.Configuration{
		Role: role, Rank: rank, WorldSize: 2, Generation: generation, Device: "cpu", Threads: 1, Seed: 1,
		Attention: "sdpa",
		Target:    &workerv1.Target{Directory: "target", Dtype: "float32", LayerIds: []uint32{0, 2}},
		Drafter: &workerv1.Drafter{Layers: 2, HiddenSize: 32, IntermediateSize: 64, Heads: 2, KvHeads: 1, HeadDim: 16,
			VocabSize: 64, RmsNormEps: 1e-6, RopeTheta: 10000, BlockSize: 4, MaskTokenId: 63, TargetLayers: 4,
			MaxPositionEmbeddings: 1024},
		Training: &workerv1.Training{Buckets: []uint32{128, 256}, Anchors: 8, Gamma: 4, WeightConstant: 100,
			Beta1: 0.9, Beta2: 0.95, Epsilon: 1e-8, ClipNorm: 1, RowsPerStep: 4, ComputeDtype: "float32"},
	}
}

// Certificate gives a certificate that is valid for cfg under sdpa on device.
func Certificate(cfg *workerv1.Configuration, device string) *workerv1.Certificate {
	drafter := cfg.GetRole() == workerv1.Role_ROLE_DRAFTER
	layers := cfg.GetDrafter().GetLayers()
	if !drafter {
		layers = 0
		for _, id := range cfg.GetTarget().GetLayerIds() {
			layers = max(layers, id+1)
		}
	}
	fingerprint, state := sha256.Sum256([]byte(cfg.String())), sha256.Sum256([]byte("state"))
	buckets := cfg.GetTraining().GetBuckets()
	return &workerv1.Certificate{
		Fingerprint: hex.EncodeToString(fingerprint[:]), Attention: "sdpa", Buckets: buckets, Passes: 2, Cache: "none",
		Seconds: map[string]float64{"build": 0.1, "first_pass": 0.2, "oracle": 0.1, "record": 0, "second_pass": 0.1, "total": 0.5},
		Kernels: []string{"scaled_dot_product_attention"}, AttentionCalls: uint64(layers) * uint64(len(buckets)) * 2,
		PeakBytes: 1 << 20, StepMs: 3.5, DigestBefore: state[:], DigestAfter: state[:],
		Graphs: proto.Uint32(0), CacheHits: proto.Uint32(0), CacheMisses: proto.Uint32(0), DenseCalls: proto.Uint64(0),
		FirstPassCompiles: proto.Uint32(0), SecondPassCompiles: proto.Uint32(0),
		DenseDifference: proto.Float64(1e-6), DenseTolerance: 1e-4, Device: device, Torch: "2.11.0",
		Environment: map[string]string{"OMP_NUM_THREADS": "1"}, Gradients: proto.Bool(drafter), PaddedAnchors: proto.Bool(drafter),
		Precision: "compute_dtype", LinearProducts: proto.Uint64(0), HeadProducts: proto.Uint64(0), ProductKernels: []string{"linear"},
	}
}
