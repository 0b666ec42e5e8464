package host

import (
	"math"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// arrangeMessage is a question with its pool as lists, for a call.
func arrangeMessage(q scheduler.ArrangeRequest) *schedulerv1.ArrangeRequest {
	n := len(q.Pool)
	all := make([]uint32, 5*n) // one piece of memory for the five lists
	list := func(i int) []uint32 { return all[i*n : (i+1)*n : (i+1)*n] }
	p := &schedulerv1.Pool{Sample: list(0), Tokens: list(1), Supervised: list(2), Anchors: list(3), Source: list(4)}
	for i := range q.Pool {
		c := &q.Pool[i]
		p.Sample[i], p.Tokens[i], p.Supervised[i], p.Anchors[i], p.Source[i] = uint32(c.Sample), c.Tokens, c.Supervised, c.Anchors, uint32(c.Source)
	}
	m := withoutPool(q)
	m.Pool = p
	return m
}

// arrangeQuestion is a question with its pool as columns, for a stream.
func arrangeQuestion(q scheduler.ArrangeRequest) *schedulerv1.Question {
	m := withoutPool(q)
	m.Columns = columnsOf(q.Pool)
	return &schedulerv1.Question{Question: &schedulerv1.Question_Arrange{Arrange: m}}
}

func withoutPool(q scheduler.ArrangeRequest) *schedulerv1.ArrangeRequest {
	m := &schedulerv1.ArrangeRequest{Epoch: q.Epoch, Count: uint32(q.Count), Left: uint64(q.Left), Total: uint64(q.Total)}
	for _, s := range q.Sources {
		m.Sources = append(m.Sources, &schedulerv1.Source{Name: s.Name, Loss: s.Loss})
	}
	return m
}

func workerMessage(w runner.Worker) *schedulerv1.Worker {
	return &schedulerv1.Worker{Role: string(w.Role), Rank: uint32(w.Rank)}
}

// workerOf takes a stranger's word for a worker; a rank that is none is -1.
func workerOf(w *schedulerv1.Worker) runner.Worker {
	if w.GetRank() > math.MaxInt32 {
		return runner.Worker{Role: runner.Role(w.GetRole()), Rank: -1}
	}
	return runner.Worker{Role: runner.Role(w.GetRole()), Rank: runner.Rank(w.GetRank())}
}

func deviceMessages(in []scheduler.Device) []*schedulerv1.Device {
	out := make([]*schedulerv1.Device, len(in))
	for i, d := range in {
		out[i] = &schedulerv1.Device{Id: d.ID, Name: d.Name, MemoryBytes: d.MemoryBytes, FreeBytes: d.FreeBytes, Health: d.Health, Node: d.Node, Numa: d.NUMA}
		for _, l := range d.Links {
			out[i].Links = append(out[i].Links, &schedulerv1.Link{Id: l.ID, GbPerS: l.GBPerS, Peer: l.Peer})
		}
	}
	return out
}
