package config

import "time"

// defaults is what a key means that a file leaves out: the comments in
// sections.go say the same, and a test compares the two.
func defaults() *Config {
	return &Config{
		Version: 1,
		Run:     Run{Directory: "runs", Seed: 1},
		Target: Target{DType: "float32", Attention: "auto", Replay: "auto", Embedded: Embedded{
			Corpus:     Corpus{Source: "python-stdlib", HeldoutEvery: 10},
			HiddenSize: 128, IntermediateSize: 256, Layers: 6, Heads: 4, KVHeads: 2, HeadDim: 32,
			InitializerRange: 0.08, Steps: 700, Batch: 8, SequenceTokens: 128,
			LearningRate: 0.004, WeightDecay: 0.01, Seed: 1,
		}},
		Drafter: Drafter{Layers: 5, CapturedLayers: 5, BlockSize: 16, Attention: "auto", Flex: Flex{Backend: "triton", CopyKeys: "true", Replay: "true"}, Precision: "compute_dtype", MaskTokenID: -1},
		Data: Data{Format: "auto", Regenerate: Regenerate{
			HeldoutSamples: 64, PromptTokens: 32, NewTokens: 96, Batch: 64,
		}},
		Training: Training{
			RowsPerStep: 8, Buckets: []int{3072}, Anchors: 512, DrawsPerRow: 1, Gamma: 7,
			LearningRate: 0.0006, WarmupFraction: 0.04, Betas: []float64{0.9, 0.95},
			ClipNorm: 1, Epsilon: 1e-8, ComputeDType: "float32", HorizonSteps: 50,
		},
		Workers:     Workers{Targets: 1, Drafters: 1, Device: "cpu", BusyDevices: "refuse", Colocate: "auto", Deterministic: "false", OnFailure: "restart", Threads: 1, Slots: 3},
		Arenas:      Arenas{Kind: "auto"},
		WarmUp:      WarmUp{Width: 1, Deadline: Duration(15 * time.Minute)},
		Images:      Images{EverySteps: 25},
		Checkpoints: Checkpoints{EverySteps: 500, KeepLast: 2, KeepBest: 1},
		Evaluate:    Evaluate{Prompts: 24, PromptTokens: 32, NewTokens: 96, HeldoutSamples: 32},
		Scheduler: Scheduler{
			Use: Balanced, Required: "false", Deadline: Duration(time.Second), Start: Duration(10 * time.Second), Strikes: 3, Pool: 1024,
			BackoffMin: Duration(5 * time.Second), BackoffMax: Duration(5 * time.Minute),
			Limits: SchedulerLimits{Memory: 8 << 30, Tasks: 10_000},
		},
		Failure: Failure{
			Restarts: 3, Decay: Duration(10 * time.Minute),
			BackoffMin: Duration(time.Second), BackoffMax: Duration(30 * time.Second), Jitter: 0.25,
			Release: Duration(30 * time.Second), NonfiniteSteps: 3, LossSpike: 3, NormSpike: 10,
			Hang: Hang{Heartbeat: Duration(10 * time.Second), WarmUp: Duration(2 * time.Minute), Order: Duration(time.Minute)},
			Deadlines: Deadlines{
				Launch: Duration(time.Minute), Configure: Duration(10 * time.Minute),
				Order: Duration(5 * time.Minute), Drain: Duration(20 * time.Second), Stop: Duration(10 * time.Minute),
			},
		},
		Export: Export{DType: "bfloat16"},
		Log:    Log{Level: "info"},
	}
}

// resolve settles what follows from another key where a file leaves it open.
func (c *Config) resolve() {
	for i := range c.Scheduler.Plugins {
		if p := &c.Scheduler.Plugins[i]; p.Config == nil {
			p.Config = map[string]any{}
		}
	}
	if c.Drafter.Attention == "auto" {
		c.Drafter.Attention = map[string]string{"cpu": "sdpa", "cuda": "flex"}[c.Workers.Device]
	}
	// In float32 torch's products of experts wait for the device, which cannot be recorded.
	quick := c.Workers.Device == "cuda" && c.Target.DType == "bfloat16"
	if c.Target.Attention == "auto" {
		c.Target.Attention = map[bool]string{false: "sdpa", true: "flex"}[quick]
	}
	if c.Target.Replay == "auto" {
		c.Target.Replay = map[bool]string{false: "false", true: "true"}[quick]
	}
}
