package scheduler

import (
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// arrangeRequest unpacks a question, and refuses lists of unequal lengths.
func arrangeRequest(q *schedulerv1.ArrangeRequest) (ArrangeRequest, error) {
	out := ArrangeRequest{Epoch: q.GetEpoch(), Count: int(q.GetCount()), Left: int(q.GetLeft()), Total: int(q.GetTotal())}
	for _, s := range q.GetSources() {
		out.Sources = append(out.Sources, Source{Name: s.GetName(), Loss: s.Loss})
	}
	var err error
	switch {
	case q.GetColumns() == nil:
		out.Pool, err = fromLists(q.GetPool())
	case q.GetPool() == nil:
		out.Pool, err = fromColumns(q.GetColumns())
	default:
		err = Errorf(runner.Invalid, "arrange: want a pool or columns, got both")
	}
	if err != nil {
		return ArrangeRequest{}, err
	}
	for i := range out.Pool {
		if got := out.Pool[i].Source; got >= len(out.Sources) {
			return ArrangeRequest{}, Errorf(runner.Invalid, "arrange: pool place %d: want one of %d sources, got %d", i, len(out.Sources), got)
		}
	}
	return out, nil
}

// fromLists makes the candidates of a pool.
func fromLists(p *schedulerv1.Pool) ([]Candidate, error) {
	n := len(p.GetSample())
	if len(p.GetTokens()) != n || len(p.GetSupervised()) != n || len(p.GetAnchors()) != n || len(p.GetSource()) != n {
		return nil, Errorf(runner.Invalid, "arrange: want %d entries in every list of the pool, got %d, %d, %d and %d",
			n, len(p.GetTokens()), len(p.GetSupervised()), len(p.GetAnchors()), len(p.GetSource()))
	}
	out := make([]Candidate, n)
	for i := range out {
		out[i] = Candidate{Sample: runner.Sample(p.Sample[i]), Tokens: p.Tokens[i], Supervised: p.Supervised[i], Anchors: p.Anchors[i], Source: int(p.Source[i])}
	}
	return out, nil
}

func workerOf(w *schedulerv1.Worker) runner.Worker {
	return runner.Worker{Role: runner.Role(w.GetRole()), Rank: runner.Rank(w.GetRank())}
}

func protoWorker(w runner.Worker) *schedulerv1.Worker {
	return &schedulerv1.Worker{Role: string(w.Role), Rank: uint32(w.Rank)}
}

func devicesOf(in []*schedulerv1.Device) []Device {
	out := make([]Device, len(in))
	for i, d := range in {
		out[i] = Device{ID: d.GetId(), Name: d.GetName(), MemoryBytes: d.GetMemoryBytes(), FreeBytes: d.GetFreeBytes(), Health: d.GetHealth(),
			Node: d.GetNode(), NUMA: d.GetNuma()}
		for _, l := range d.GetLinks() {
			out[i].Links = append(out[i].Links, Link{ID: l.GetId(), GBPerS: l.GetGbPerS(), Peer: l.GetPeer()})
		}
	}
	return out
}
