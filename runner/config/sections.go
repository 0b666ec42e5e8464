package config

// Config is a whole run. The comment of a field is its documentation: meaning,
// unit and default; the JSON Schema is made from it. Tags: yaml is the key,
// min and max bound numbers, durations and sizes, enum is a closed set.
type Config struct {
	// Version of this format. Always 1.
	Version int `yaml:"version" min:"1" max:"1"`
	// Run says what the run is called and where its files go.
	Run Run `yaml:"run"`
	// Python says which interpreter runs the workers.
	Python Python `yaml:"python"`
	// Target is the frozen model whose hidden states are captured.
	Target Target `yaml:"target"`
	// Drafter is the model that is trained.
	Drafter Drafter `yaml:"drafter"`
	// Data is what is trained on.
	Data Data `yaml:"data"`
	// Training is the recipe.
	Training Training `yaml:"training"`
	// Workers says how many processes run, and on which devices.
	Workers Workers `yaml:"workers"`
	// Arenas are the memory that rows are handed over in.
	Arenas Arenas `yaml:"arenas"`
	// WarmUp bounds how workers prove their kernels before they train.
	WarmUp WarmUp `yaml:"warmup"`
	// Images are copies of a drafter's whole state in shared memory.
	Images Images `yaml:"images"`
	// Checkpoints are images published to disk.
	Checkpoints Checkpoints `yaml:"checkpoints"`
	// Evaluate measures the drafter on held-out prompts.
	Evaluate Evaluate `yaml:"evaluate"`
	// Scheduler says who decides what a run leaves open.
	Scheduler Scheduler `yaml:"scheduler"`
	// Costs says what work takes, for a scheduler that chooses by it.
	Costs Costs `yaml:"costs"`
	// Failure says how much is borne before the run gives up.
	Failure Failure `yaml:"failure"`
	// Export is the drafter directory that serving engines load.
	Export Export `yaml:"export"`
	// Log is what is written to the log files.
	Log Log `yaml:"log"`

	at places // where each path was written, for messages
}

// Run names a run.
type Run struct {
	// Name of the run and of its directory: letters, digits, dot, dash, underscore. Default: the config file's name.
	Name string `yaml:"name"`
	// Directory that holds runs, relative to the working directory. Default runs.
	Directory string `yaml:"directory"`
	// Seed of every random choice. Default 1.
	Seed uint64 `yaml:"seed"`
}

// Python names the interpreter.
type Python struct {
	// Interpreter to run the workers with; empty: the environment that this program makes and checks itself. Default empty.
	Interpreter string `yaml:"interpreter"`
}

// Target describes the frozen model.
type Target struct {
	// Directory of a Hugging Face model with its tokenizer, relative to the working directory; empty: the embedded target is built. Default empty.
	Directory string `yaml:"directory"`
	// Embedded is a small model built from a corpus, once, when directory is empty.
	Embedded Embedded `yaml:"embedded"`
	// DType the target computes in. Default float32.
	DType string `yaml:"dtype" enum:"float32|bfloat16"`
	// LayerIDs are the captured layers, 0-based, after the block; empty: spread over the target by drafter.captured_layers. Default empty.
	LayerIDs []int `yaml:"layer_ids" min:"0"`
	// Attention of rows: sdpa is the model's own, under dense masks; flex is compiled, by tiles, with norms and rotation compiled too, and needs a GPU and dtype bfloat16; auto: flex where both are there, else sdpa. Decoding is the model's own always. Default auto.
	Attention string `yaml:"attention" enum:"auto|sdpa|flex"`
	// Replay records a target's row of every bucket on the GPU in warm-up and replays it: the same kernels, started at once; auto: true on cuda for a target in bfloat16, else false. Default auto.
	Replay string `yaml:"replay" enum:"auto|true|false"`
}

// Embedded is the recipe of the embedded target.
type Embedded struct {
	// Corpus is the text that the target is trained on.
	Corpus Corpus `yaml:"corpus"`
	// HiddenSize of the model, in elements. Default 128.
	HiddenSize int `yaml:"hidden_size" min:"8" max:"65536"`
	// IntermediateSize of the MLP, in elements. Default 256.
	IntermediateSize int `yaml:"intermediate_size" min:"8" max:"262144"`
	// Layers of the model. Default 6.
	Layers int `yaml:"layers" min:"1" max:"512"`
	// Heads of queries. Default 4.
	Heads int `yaml:"heads" min:"1" max:"1024"`
	// KVHeads of keys and values; divides heads. Default 2.
	KVHeads int `yaml:"kv_heads" min:"1" max:"1024"`
	// HeadDim is the size of one head, in elements; even. Default 32.
	HeadDim int `yaml:"head_dim" min:"2" max:"1024"`
	// InitializerRange is the standard deviation of the first weights. Default 0.08.
	InitializerRange float64 `yaml:"initializer_range" min:"0"`
	// Steps of training. Default 700.
	Steps int `yaml:"steps" min:"1" max:"100000000"`
	// Batch is sequences per step. Default 8.
	Batch int `yaml:"batch" min:"1" max:"65536"`
	// SequenceTokens is the length of a training sequence. Default 128.
	SequenceTokens int `yaml:"sequence_tokens" min:"8" max:"1048576"`
	// LearningRate at its peak. Default 0.004.
	LearningRate float64 `yaml:"learning_rate" min:"0"`
	// WeightDecay of AdamW. Default 0.01.
	WeightDecay float64 `yaml:"weight_decay" min:"0"`
	// Seed of the target's training; apart from run.seed, so that runs share one target. Default 1.
	Seed uint64 `yaml:"seed"`
}

// Corpus is text, split by file into training and held-out sets.
type Corpus struct {
	// Source of the text: python-stdlib is the standard library of the interpreter, files reads corpus.files. Default python-stdlib.
	Source string `yaml:"source" enum:"python-stdlib|files"`
	// Files to read for source files: .txt, .py and .md whole, .jsonl one sample a line. Default empty.
	Files []string `yaml:"files"`
	// MaxBytes is how much text is read; 0B: all. Default 0B.
	MaxBytes Size `yaml:"max_bytes"`
	// HeldoutEvery holds out every Nth file. Default 10.
	HeldoutEvery int `yaml:"heldout_every" min:"2" max:"1000000"`
}

// Drafter is the shape of the trained model.
type Drafter struct {
	// Layers of the drafter. Default 5.
	Layers int `yaml:"layers" min:"1" max:"128"`
	// CapturedLayers is how many layers of the target feed the drafter when target.layer_ids is empty. Default 5.
	CapturedLayers int `yaml:"captured_layers" min:"1" max:"128"`
	// BlockSize is the anchor and the mask tokens predicted at once, in tokens. Default 16.
	BlockSize int `yaml:"block_size" min:"2" max:"256"`
	// HiddenSize must equal the target's; 0: the target's. Default 0.
	HiddenSize int `yaml:"hidden_size" min:"0" max:"65536"`
	// IntermediateSize of the MLP; 0: the target's. Default 0.
	IntermediateSize int `yaml:"intermediate_size" min:"0" max:"262144"`
	// Heads of queries; 0: the target's. Default 0.
	Heads int `yaml:"heads" min:"0" max:"1024"`
	// KVHeads of keys and values; 0: the target's. Default 0.
	KVHeads int `yaml:"kv_heads" min:"0" max:"1024"`
	// HeadDim is the size of one head; 0: the target's. Default 0.
	HeadDim int `yaml:"head_dim" min:"0" max:"1024"`
	// InitFrom is an exported drafter's directory to start from; empty: random weights. Default empty.
	InitFrom string `yaml:"init_from"`
	// Attention of training: sdpa is explicit and dense, flex is compiled and needs a GPU; auto: flex on cuda, sdpa on cpu. Default auto.
	Attention string `yaml:"attention" enum:"auto|sdpa|flex"`
	// Flex says how the kernels of attention flex are built.
	Flex Flex `yaml:"flex"`
	// Precision of the matrix products of the drafter's layers and of the head: training.compute_dtype, or fp8 with a scale for each tensor; fc, attention, norms and the softmax stay as they are, masters and sums float32. fp8 wants sizes that are multiples of 16, and a GPU of compute capability 8.9 or more; on a CPU it computes the same, slowly. At the reference sizes a row took 98 ms on an H200 in place of 137; what it does to acceptance has not been measured yet. Default compute_dtype.
	Precision string `yaml:"precision" enum:"compute_dtype|fp8"`
	// MaskTokenID is the token that stands for an unknown one; -1: the tokenizer's mask token. Default -1.
	MaskTokenID int `yaml:"mask_token_id" min:"-1" max:"2147483647"`
}

// Flex is how the kernels of compiled attention are built. What was measured on
// an H200 was measured with torch's own sizes, so they are the default.
type Flex struct {
	// Backend of the kernels, pinned: torch's own choice depends on the shape. Default triton.
	Backend string `yaml:"backend" enum:"triton"`
	// BlockM is how many queries a program of the forward holds, a power of two; 0: torch's choice. Default 0.
	BlockM int `yaml:"block_m" min:"0" max:"128"`
	// BlockN is how many keys a turn of the forward reads, a power of two; 0: torch's choice. Default 0.
	BlockN int `yaml:"block_n" min:"0" max:"128"`
	// Warps of a program of the forward, a power of two; 0: torch's choice. Default 0.
	Warps int `yaml:"warps" min:"0" max:"16"`
	// Stages of the forward's pipeline; 0: torch's choice. Default 0.
	Stages int `yaml:"stages" min:"0" max:"8"`
	// BackwardBlockM1 is how many queries a turn of the keys' backward reads, a power of two; 0: torch's choice. Default 0.
	BackwardBlockM1 int `yaml:"backward_block_m1" min:"0" max:"128"`
	// BackwardBlockN1 is how many keys a program of the keys' backward holds, a power of two; 0: torch's choice. Default 0.
	BackwardBlockN1 int `yaml:"backward_block_n1" min:"0" max:"128"`
	// BackwardBlockM2 is how many queries a program of the queries' backward holds, a power of two; 0: torch's choice. Default 0.
	BackwardBlockM2 int `yaml:"backward_block_m2" min:"0" max:"128"`
	// BackwardBlockN2 is how many keys a turn of the queries' backward reads, a power of two; 0: torch's choice. Default 0.
	BackwardBlockN2 int `yaml:"backward_block_n2" min:"0" max:"128"`
	// BackwardWarps of a program of the backward, a power of two; 0: torch's choice. Default 0.
	BackwardWarps int `yaml:"backward_warps" min:"0" max:"16"`
	// BackwardStages of the backward's pipeline; 0: torch's choice. Default 0.
	BackwardStages int `yaml:"backward_stages" min:"0" max:"8"`
	// CopyKeys gives each query head keys and values of its own where several share them: the backward has shorter pieces of work then, which fill the GPU better (a fifth less of it at the reference sizes), for more memory. Default true.
	CopyKeys string `yaml:"copy_keys" enum:"true|false"`
	// Replay records a micro-step on the GPU in warm-up and replays it: the same kernels, started at once. The last of a step, in which several drafters sum, is not replayed. Default true.
	Replay string `yaml:"replay" enum:"true|false"`
}

// Data is what is trained on.
type Data struct {
	// Files of training samples (.jsonl, .txt, .py, .md); empty: the embedded target's corpus. Default empty.
	Files []string `yaml:"files"`
	// HeldoutFiles are samples that are never trained on, for evaluation. Default empty.
	HeldoutFiles []string `yaml:"heldout_files"`
	// Format of the files. Default auto.
	Format string `yaml:"format" enum:"auto|tokens|text|chat|prompt_response"`
	// Regenerate lets the target answer prompts taken from the data itself.
	Regenerate Regenerate `yaml:"regenerate"`
	// MaxTokens of a sample; longer ones are cut at the end, counted and reported; 0: the largest bucket. Default 0.
	MaxTokens int `yaml:"max_tokens" min:"0" max:"1048576"`
}

// Regenerate makes training samples out of the target's own answers.
type Regenerate struct {
	// Samples to make for training; 0: the files are used as they are. Default 0.
	Samples int `yaml:"samples" min:"0" max:"1000000000"`
	// HeldoutSamples to make for evaluation. Default 64.
	HeldoutSamples int `yaml:"heldout_samples" min:"1" max:"10000000"`
	// PromptTokens taken from the data for one sample. Default 32.
	PromptTokens int `yaml:"prompt_tokens" min:"1" max:"1048576"`
	// NewTokens that the target answers. Default 96.
	NewTokens int `yaml:"new_tokens" min:"2" max:"1048576"`
	// Temperature of sampling; 0 is greedy. Default 0.
	Temperature float64 `yaml:"temperature" min:"0" max:"100"`
	// Batch is prompts answered side by side. Default 64.
	Batch int `yaml:"batch" min:"1" max:"65536"`
	// Seed of the choice of prompts and of sampling, for runs that share answers; 0: run.seed. Default 0.
	Seed uint64 `yaml:"seed"`
}

// Training is the recipe. Work is budgeted in steps or epochs, never in time.
type Training struct {
	// Steps of the optimiser; 0: use epochs. Default 0.
	Steps int `yaml:"steps" min:"0" max:"1000000000"`
	// Epochs over the data; 0: use steps. Default 0.
	Epochs int `yaml:"epochs" min:"0" max:"1000000"`
	// RowsPerStep is packed rows of one optimiser step, over all drafters; a multiple of workers.drafters. Default 8.
	RowsPerStep int `yaml:"rows_per_step" min:"1" max:"65536"`
	// Buckets are the lengths of packed rows in tokens, rising; at most 3. Default [3072].
	Buckets []int `yaml:"buckets" min:"8" max:"1048576"`
	// Anchors is how many blocks one row trains. Default 512.
	Anchors int `yaml:"anchors" min:"1" max:"65536"`
	// DrawsPerRow is how often anchors are drawn from one produced row, each a forward and backward. Default 1.
	DrawsPerRow int `yaml:"draws_per_row" min:"1" max:"64"`
	// Gamma is the decay of the loss weights along a block: exp(-(k-1)/gamma). Default 7.
	Gamma float64 `yaml:"gamma" min:"0.001" max:"1000000"`
	// LearningRate at its peak. Default 0.0006.
	LearningRate float64 `yaml:"learning_rate" min:"0"`
	// WarmupFraction of the steps in which the learning rate rises. Default 0.04.
	WarmupFraction float64 `yaml:"warmup_fraction" min:"0" max:"1"`
	// FloorFraction of the peak that the cosine ends at. Default 0.
	FloorFraction float64 `yaml:"floor_fraction" min:"0" max:"1"`
	// Betas of AdamW, two numbers. Default [0.9, 0.95].
	Betas []float64 `yaml:"betas" min:"0" max:"0.999999"`
	// WeightDecay of AdamW. Default 0.
	WeightDecay float64 `yaml:"weight_decay" min:"0" max:"1"`
	// ClipNorm bounds the gradient's norm; 0: no clipping. Default 1.
	ClipNorm float64 `yaml:"clip_norm" min:"0"`
	// Epsilon of AdamW. Default 1e-08.
	Epsilon float64 `yaml:"epsilon" min:"1e-20" max:"1"`
	// ComputeDType of forward and backward; masters are always float32. Default float32.
	ComputeDType string `yaml:"compute_dtype" enum:"float32|bfloat16"`
	// HorizonSteps is how many steps' samples are ordered at a time. Default 50.
	HorizonSteps int `yaml:"horizon_steps" min:"1" max:"1000000"`
	// StopAfter ends the run early, with a checkpoint.
	StopAfter StopAfter `yaml:"stop_after"`
}

// StopAfter ends a run before its last step.
type StopAfter struct {
	// Time since training began; 0s: never. Default 0s.
	Time Duration `yaml:"time"`
	// Steps since the start of this supervisor; 0: never. Default 0.
	Steps int `yaml:"steps" min:"0" max:"1000000000"`
}

// Workers says which processes run where.
type Workers struct {
	// Targets is the number of target workers, or auto: chosen by costs and memory. Default 1.
	Targets Count `yaml:"targets"`
	// Drafters is the number of drafter workers, or auto: chosen among the divisors of training.rows_per_step. Default 1.
	Drafters Count `yaml:"drafters"`
	// Device that workers and jobs compute on. Default cpu.
	Device string `yaml:"device" enum:"cpu|cuda"`
	// Devices are the GPUs to use, in that order, by nvidia-smi's index or UUID; empty: all that this process may see. Default empty.
	Devices []string `yaml:"devices"`
	// BusyDevices says what to do with a GPU that other processes use: refuse it, or allow it with the memory that is left. Default refuse.
	BusyDevices string `yaml:"busy_devices" enum:"refuse|allow"`
	// Colocate lets a target and a drafter share one GPU and take turns; auto: where there are too few GPUs for one each. Default auto.
	Colocate string `yaml:"colocate" enum:"auto|true|false"`
	// Deterministic asks cuBLAS for the same bits every time, by CUBLAS_WORKSPACE_CONFIG; a CPU gives them anyway. Default false.
	Deterministic string `yaml:"deterministic" enum:"false|true"`
	// Threads of torch in each worker. Default 1.
	Threads int `yaml:"threads" min:"1" max:"1024"`
	// Slots of each target's arena, in rows. Default 3.
	Slots int `yaml:"slots" min:"2" max:"64"`
	// OnFailure says what a worker's death means: restart starts it again within failure's budget, stop ends the run with a checkpoint. Default restart.
	OnFailure string `yaml:"on_failure" enum:"restart|stop"`
	// Turns are workers that may compute at once on one device; 0: one on a GPU, as many as the cores allow on a CPU. Default 0.
	Turns int `yaml:"turns" min:"0" max:"1024"`
}

// Arenas says in what memory rows are handed over; workers.slots is their size.
type Arenas struct {
	// Kind: memfd is host memory, cuda_vmm the target's own GPU, which drafters read directly; auto: cuda_vmm on GPUs that can, else memfd, with the reason shown. Default auto.
	Kind string `yaml:"kind" enum:"auto|memfd|cuda_vmm"`
}

// WarmUp bounds warm-up.
type WarmUp struct {
	// Width is how many workers may warm up at once. Default 1.
	Width int `yaml:"width" min:"1" max:"256"`
	// Deadline of one worker's warm-up. Default 15m.
	Deadline Duration `yaml:"deadline" min:"1s"`
	// CacheDirectory holds compiled kernels, on a disk of this machine; empty: the user's cache. Default empty.
	CacheDirectory string `yaml:"cache_directory"`
}

// Images says how often state is copied.
type Images struct {
	// EverySteps an image is taken. Default 25.
	EverySteps int `yaml:"every_steps" min:"1" max:"1000000"`
}

// Checkpoints says how often state goes to disk, and what is kept.
type Checkpoints struct {
	// EverySteps an image is published. Default 500.
	EverySteps int `yaml:"every_steps" min:"1" max:"100000000"`
	// KeepLast is how many of the newest are kept. Default 2.
	KeepLast int `yaml:"keep_last" min:"1" max:"100000"`
	// KeepBest keeps the best by held-out loss besides: 1 or 0. Default 1.
	KeepBest int `yaml:"keep_best" min:"0" max:"1"`
}

// Evaluate measures acceptance.
type Evaluate struct {
	// EverySteps acceptance is measured during training; 0: before and after only. Default 0.
	EverySteps int `yaml:"every_steps" min:"0" max:"100000000"`
	// Prompts to decode. Default 24.
	Prompts int `yaml:"prompts" min:"1" max:"1000000"`
	// PromptTokens of each. Default 32.
	PromptTokens int `yaml:"prompt_tokens" min:"1" max:"1048576"`
	// NewTokens decoded for each. Default 96.
	NewTokens int `yaml:"new_tokens" min:"2" max:"1048576"`
	// HeldoutSamples of which the held-out loss is the mean. Default 32.
	HeldoutSamples int `yaml:"heldout_samples" min:"1" max:"1000000"`
}

// Failure says how much is borne.
type Failure struct {
	// Restarts of one worker before the run gives up. Default 3.
	Restarts int `yaml:"restarts" min:"0" max:"1000"`
	// Decay is how long a worker must live for one restart to be forgiven. Default 10m.
	Decay Duration `yaml:"decay" min:"1s"`
	// BackoffMin is the wait before the first restart. Default 1s.
	BackoffMin Duration `yaml:"backoff_min" min:"1ms"`
	// BackoffMax is the longest wait before a restart. Default 30s.
	BackoffMax Duration `yaml:"backoff_max" min:"1ms"`
	// Jitter is the share of a wait by which a draw may shorten it, so that what died together does not start again together. Default 0.25.
	Jitter float64 `yaml:"jitter" min:"0" max:"1"`
	// Release is how long a dead worker's GPU memory is waited for before it is started again; then it is tried all the same, and said so. Default 30s.
	Release Duration `yaml:"release" min:"0s"`
	// NonfiniteSteps running that end the run. Default 3.
	NonfiniteSteps int `yaml:"nonfinite_steps" min:"1" max:"1000"`
	// LossSpike is how many times the median loss of the last 32 steps a step's may be; more is reported, and health degraded for 32 steps; 0: never. Default 3.
	LossSpike float64 `yaml:"loss_spike" min:"0" max:"1000000"`
	// NormSpike is likewise for the gradient's norm before clipping. Default 10.
	NormSpike float64 `yaml:"norm_spike" min:"0" max:"1000000"`
	// Hang says when a worker is ended before its deadline because it hangs.
	Hang Hang `yaml:"hang"`
	// Deadlines of what a worker is asked.
	Deadlines Deadlines `yaml:"deadlines"`
}

// Hang bounds how long a worker may give no sign of working. One that computes,
// in its own process or a child's, is never ended for it, however long it takes;
// nor is one that may wait for another worker, or has only begun: deadlines end those.
type Hang struct {
	// Heartbeat is the oldest answer to a ping, which a worker gives whatever Python does; a stopped process does not. Default 10s.
	Heartbeat Duration `yaml:"heartbeat" min:"1s"`
	// WarmUp is how long a warm-up may neither get on nor compute; 0s: to its deadline. Default 2m.
	WarmUp Duration `yaml:"warmup" min:"0s"`
	// Order is likewise for one order on the lane. Default 1m.
	Order Duration `yaml:"order" min:"0s"`
}

// Deadlines bound every wait for a worker. A worker that misses one is killed.
type Deadlines struct {
	// Launch is from the start of the process to its handshake. Default 1m.
	Launch Duration `yaml:"launch" min:"1s"`
	// Configure is for building the model. Default 10m.
	Configure Duration `yaml:"configure" min:"1s"`
	// Order is for one order on the lane. Default 5m.
	Order Duration `yaml:"order" min:"1s"`
	// Drain is for finishing and ending. Default 20s.
	Drain Duration `yaml:"drain" min:"100ms"`
	// Stop is from a signal or `down` to the end, with its checkpoint; then the run is ended at once, and its newest checkpoint is what there is. Default 10m.
	Stop Duration `yaml:"stop" min:"1s"`
}

// Export says where the drafter goes at the end.
type Export struct {
	// Directory of the export; empty: export in the run's directory. Default empty.
	Directory string `yaml:"directory"`
	// DType of the exported weights. Default bfloat16.
	DType string `yaml:"dtype" enum:"bfloat16|float32"`
}

// Log says what is logged.
type Log struct {
	// Level below which nothing is written. Default info.
	Level string `yaml:"level" enum:"trace|debug|info|warn|error"`
}
