package drivetest

import "github.com/dflash-runner/dflash-runner/runner"

// lie gives a reply of the right type that is not true: another version, row,
// step or slot than was asked for. how chooses among the ways of its type.
func lie(r runner.Reply, how int) runner.Reply {
	switch r := r.(type) {
	case runner.Mapped:
		r.Arena++
		return r
	case runner.Created:
		r.Arena += 7
		return r
	case runner.Produced:
		return lieOfRow(r, how)
	case runner.Pulled:
		r.Row++
		return r
	case runner.Joined:
		r.Communicator++
		return r
	case runner.Trained:
		r.Micro++
		return r
	case runner.Voted:
		if how%2 == 0 && len(r.Rows) > 0 {
			r.Rows = append([]runner.RowLoss{{Row: r.Rows[0].Row + 1000}}, r.Rows[1:]...)
		} else {
			r.Step++
		}
		return r
	case runner.Committed:
		r.Step++
		return r
	case runner.Aborted:
		r.Clean = false
		return r
	case runner.Taken:
		r.Step++
		return r
	case runner.Saved:
		r.Written = !r.Written
		return r
	case runner.Loaded:
		r.Chain[0]++
		return r
	case runner.Evaluated:
		r.Step++
		return r
	}
	return runner.Mapped{Arena: 1 << 20} // of another type
}

// lieOfRow gives a handle that leaves its slot, is of another version, or is no
// handle of this row.
func lieOfRow(r runner.Produced, how int) runner.Reply {
	switch how % 6 {
	case 0:
		r.Handle.Version++
	case 1:
		r.Handle.Slot = 1 << 20
	case 2:
		r.Row++
	case 3:
		r.Handle.Arena += 7
	case 5:
		r.Handle.Arena = (r.Handle.Arena - 1) ^ 1 + 1 // another target's, where there is one: 2 for 1, 1 for 2
	default:
		t := r.Handle.Tensors[0]
		t.Offset = 1 << 40
		r.Handle.Tensors = []runner.Tensor{t}
	}
	return r
}
