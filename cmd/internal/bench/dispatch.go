package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dflash-runner/dflash-runner/plugins/worker"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/lane"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

const (
	turns       = 10              // orders and packets take turns, so that load meets both
	unmeasured  = 200             // of each, before the first
	phaseWait   = 2 * time.Minute // for each phase of the worker's start
	stopWait    = 10 * time.Second
	orderName   = "commit" // of a step that the worker is at
	orderDetail = "a repeated commit, acknowledged by the main thread"
)

// Dispatch measures order and reply through the lane and the main thread of a
// real, idle drafter worker with its certificate, n orders one at a time,
// beside packets of the same size through a bare socket to a minimal Python
// process and back.
//
// The order is a commit of the step that the worker is at: it takes the way of
// every commit (lane thread, queue, main thread, role) and changes nothing.
func Dispatch(ctx context.Context, p *Python, n int, stderr io.Writer) (*Report, error) {
	r := start("dispatch")
	w, err := startWorker(ctx, p, stderr)
	if err != nil {
		return nil, err
	}
	defer w.stop(ctx)
	e, err := startEcho(ctx, p)
	if err != nil {
		return nil, err
	}
	defer e.stop()
	size, err := lane.EncodeOrder(1, runner.Commit{})
	if err != nil {
		return nil, err
	}
	packet := make([]byte, len(size))
	orders, packets, err := takeTurns(n, w.order, func() (time.Duration, error) { return e.ping(packet) })
	if err != nil {
		return nil, err
	}
	r.latencies("order to reply", orders, packets, map[string]*Goal{"p50": atMost(100), "p99": atMost(1000)})
	r.latencies("bare ping-pong", packets, nil, nil)
	d := w.process.Description()
	r.Versions["python"], r.Torch, r.Facts["order"] = d.GetPython(), d.GetTorch(), orderDetail
	r.Facts["samples"] = number(float64(n))
	return r.done(), nil
}

// takeTurns measures n of each, in turns of equal length.
func takeTurns(n int, order, packet func() (time.Duration, error)) (orders, packets []time.Duration, err error) {
	for turn := -1; turn < turns; turn++ {
		count := (n*(turn+1))/turns - (n*turn)/turns
		if turn < 0 {
			count = unmeasured
		}
		a, err := repeat(count, order)
		if err != nil {
			return nil, nil, err
		}
		b, err := repeat(count, packet)
		if err != nil {
			return nil, nil, err
		}
		if turn >= 0 {
			orders, packets = append(orders, a...), append(packets, b...)
		}
	}
	return orders, packets, nil
}

func repeat(n int, once func() (time.Duration, error)) ([]time.Duration, error) {
	out := make([]time.Duration, n)
	for i := range out {
		var err error
		if out[i], err = once(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// idleWorker is a drafter that has its certificate and nothing to do.
type idleWorker struct {
	process *worker.Process // nil: not launched
	lane    *lane.Conn
	release func() error // of its sockets' directory
	seq     uint64
}

// startWorker takes a drafter up to its checked certificate.
func startWorker(ctx context.Context, p *Python, stderr io.Writer) (_ *idleWorker, err error) {
	target := filepath.Join(p.dir, "target")
	if err := p.makeTarget(ctx, Devices{}, randomTarget{Directory: target, Vocabulary: 64, Hidden: 32, Intermediate: 64, Layers: 2, Heads: 2, KVHeads: 2, HeadDim: 16, Tied: true, DType: "float32", Device: placement.CPU, MaxTokens: 512}); err != nil {
		return nil, err
	}
	sockets, release, err := admin.OwnedDirectory("")
	if err != nil {
		return nil, err
	}
	w := &idleWorker{release: release}
	defer func() {
		if err != nil {
			w.stop(ctx)
		}
	}()
	var nonce [8]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, runner.Errorf(runner.Internal, "make nonce: %w", err)
	}
	c := tiny(target, p.dir)
	process, err := worker.Launch(ctx, worker.Spec{
		Life: runner.Life{Worker: runner.Worker{Role: runner.Drafter}, Generation: 1},
		Argv: []string{p.interpreter, "-m", "dflash_runner.serve"}, Env: p.environment(), Dir: p.dir,
		Configuration: c, RuntimeDir: sockets, Device: c.Device, Nonce: hex.EncodeToString(nonce[:]),
		StartTimeout: phaseWait, DescribeTimeout: phaseWait, ConfigureTimeout: phaseWait, Grace: stopWait,
		Logger: hclog.New(&hclog.LoggerOptions{Name: "bench", Output: stderr, Level: hclog.Warn}),
	})
	if err != nil {
		return nil, err
	}
	w.process, w.lane = process, lane.New(process.Lane())
	warm, cancel := context.WithTimeout(ctx, phaseWait)
	defer cancel()
	certificate, err := process.WarmUp(warm, nil)
	if err == nil {
		_, err = worker.Check(certificate, c, c.Device)
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

// tiny configures a drafter for the target that target.py makes.
func tiny(target, groups string) *workerv1.Configuration {
	return &workerv1.Configuration{
		Role: workerv1.Role_ROLE_DRAFTER, WorldSize: 1, Generation: 1, Device: "cpu", Threads: 1, Attention: "sdpa",
		Target: &workerv1.Target{Directory: target, Dtype: "float32", LayerIds: []uint32{1}},
		Drafter: &workerv1.Drafter{Layers: 1, HiddenSize: 32, IntermediateSize: 64, Heads: 2, KvHeads: 2, HeadDim: 16, VocabSize: 64,
			RmsNormEps: 1e-6, RopeTheta: 1e4, BlockSize: 4, MaskTokenId: 63, TargetLayers: 2, MaxPositionEmbeddings: 512},
		Training: &workerv1.Training{Buckets: []uint32{32}, Anchors: 8, Gamma: 4, WeightConstant: 40, Beta1: 0.9, Beta2: 0.95,
			Epsilon: 1e-8, WeightDecay: 0.01, ClipNorm: 1, RowsPerStep: 1, ComputeDtype: "float32"},
		CommunicatorDirectory: groups,
	}
}

// order sends one order and waits for its reply.
func (w *idleWorker) order() (time.Duration, error) {
	w.seq++
	begun := time.Now()
	if err := w.lane.Send(w.seq, runner.Commit{}, nil); err != nil {
		return 0, err
	}
	seq, reply, _, err := w.lane.Receive() // the reply wanted brings no descriptor
	took := time.Since(begun)
	if err != nil {
		return 0, runner.Errorf(runner.Unavailable, "receive reply: %w", err)
	}
	if _, ok := reply.(runner.Committed); !ok || seq != w.seq {
		return 0, runner.Errorf(runner.Internal, "order %s %d: want its acknowledgement, got %s %d: %+v", orderName, w.seq, runner.ReplyType(reply), seq, reply)
	}
	return took, nil
}

// stop ends the worker.
func (w *idleWorker) stop(ctx context.Context) {
	if w.process != nil {
		_ = w.process.Stop(context.WithoutCancel(ctx)) // what survives SIGKILL is beyond us
		_ = w.lane.Close()
	}
	_ = w.release() // gc finds what stays
}
