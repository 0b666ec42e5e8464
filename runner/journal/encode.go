package journal

import (
	"encoding/binary"
	"math"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// The types of records, as numbers in a frame. Append-only.
const (
	typeStart uint8 = iota + 1
	typeExclude
	typeArrange
	typePlan
	typeRestore
	typeCommit
	typeSkip
	typeCheckpoint
	typeEvaluation
	typeEnd
)

var le = binary.LittleEndian

// encode appends a record's payload and gives its type. The encoding is
// canonical: one record has one form.
func encode(b []byte, r runner.Record) ([]byte, uint8) {
	switch r := r.(type) {
	case runner.StartRecord:
		b = append(b, r.Manifest[:]...)
		return le.AppendUint32(b, uint32(r.Lineage)), typeStart
	case runner.ExcludeRecord:
		return putString(putSamples(b, r.Samples), r.Reason), typeExclude
	case runner.ArrangeRecord:
		return putSamples(le.AppendUint32(b, r.Epoch), r.Samples), typeArrange
	case runner.PlanRecord:
		b = append(b, r.Chain[:]...)
		return rows.AppendStep(b, rows.Step{Plan: r.Plan, Rows: r.Rows}), typePlan
	case runner.RestoreRecord:
		return append(putAt(b, r.Step, r.Lineage), r.Chain[:]...), typeRestore
	case runner.CommitRecord:
		return putCommit(b, r), typeCommit
	case runner.SkipRecord:
		b = le.AppendUint64(putAt(b, r.Step, r.Lineage), uint64(r.Row))
		b = putSamples(b, r.Samples)
		b = le.AppendUint32(b, uint32(len(r.Draws)))
		for _, d := range r.Draws {
			b = le.AppendUint32(b, d)
		}
		return putString(b, r.Reason), typeSkip
	case runner.CheckpointRecord:
		b = putString(le.AppendUint64(b, uint64(r.Step)), r.Name)
		b = append(append(b, r.Image[:]...), r.Chain[:]...)
		return putBool(b, r.Best), typeCheckpoint
	case runner.EvaluationRecord:
		return putEvaluation(b, r), typeEvaluation
	case runner.EndRecord:
		b = putString(le.AppendUint64(b, uint64(int64(r.Code))), r.Reason)
		return le.AppendUint64(b, uint64(r.Step)), typeEnd
	}
	panic("journal: record of an unknown type " + runner.RecordType(r)) // the set is closed; a test goes through it
}

func putCommit(b []byte, r runner.CommitRecord) []byte {
	b = le.AppendUint32(putAt(b, r.Step, r.Lineage), uint32(len(r.Rows)))
	for _, l := range r.Rows {
		b = putFloat(putFloat(le.AppendUint64(b, uint64(l.Row)), l.Numerator), l.Denominator)
	}
	return append(le.AppendUint32(le.AppendUint32(b, r.Weight), r.Norm), r.Chain[:]...)
}

func putEvaluation(b []byte, r runner.EvaluationRecord) []byte {
	b = putString(le.AppendUint64(b, uint64(r.Step)), r.What)
	b = le.AppendUint32(b, r.Prompts)
	for _, v := range [...]uint64{r.Tokens, r.Forwards, r.BusyUS} {
		b = le.AppendUint64(b, v)
	}
	b = putFloat(putFloat(putBool(b, r.Lossless), r.Numerator), r.Denominator)
	b = le.AppendUint64(le.AppendUint64(b, r.NonLoopingTokens), r.NonLoopingForwards)
	return le.AppendUint32(b, r.Looping)
}

func putAt(b []byte, s runner.Step, l runner.Lineage) []byte {
	return le.AppendUint32(le.AppendUint64(b, uint64(s)), uint32(l))
}

func putString(b []byte, s string) []byte { return append(le.AppendUint32(b, uint32(len(s))), s...) }

func putFloat(b []byte, f float64) []byte { return le.AppendUint64(b, math.Float64bits(f)) }

func putBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func putSamples(b []byte, s []runner.Sample) []byte {
	b = le.AppendUint32(b, uint32(len(s)))
	for _, v := range s {
		b = le.AppendUint32(b, uint32(v))
	}
	return b
}
