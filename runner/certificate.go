package runner

// Certificate is what the supervisor keeps and shows of a worker's certificate,
// after every field of the full one was checked.
type Certificate struct {
	Fingerprint        string             `json:"fingerprint"`
	Attention          string             `json:"attention"`
	Buckets            []uint32           `json:"buckets"`
	Graphs             uint32             `json:"graphs"`
	Cache              string             `json:"cache"`
	DenseCalls         uint64             `json:"dense_calls"`
	SecondPassCompiles uint32             `json:"second_pass_compiles"`
	Seconds            map[string]float64 `json:"seconds"`
	PeakBytes          uint64             `json:"peak_bytes"`
	StepMS             float64            `json:"step_ms"`
	DenseDifference    float64            `json:"dense_difference"`
	Precision          string             `json:"precision,omitempty"`    // of matrix products: compute_dtype or fp8
	FP8Products        uint64             `json:"fp8_products,omitempty"` // of layers and head, in both passes
}
