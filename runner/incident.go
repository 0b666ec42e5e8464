package runner

import (
	"slices"
	"time"
)

// together is how close to one another deaths with the same message are told of
// as one: workers that end for one reason, such as a file that all of them want,
// do so within their starts.
const together = time.Minute

// Incident is deaths that belong together, the first cause first.
type Incident struct {
	First Failure
	Same  []Failure // others that died with the same message
	After []Failure // consequences: lives that were in one communicator with it, in the order of their ends
}

// Incidents groups reports, which stand in the order in which they were made:
// each incident stands where its first report was. Within one, who ended by
// itself comes before whom this program ended, and then who ended first.
func Incidents(all []Failure) (out []Incident) {
	for _, group := range groups(all) {
		slices.SortStableFunc(group, func(a, b Failure) int {
			if a.ForcedBySelf != b.ForcedBySelf {
				if b.ForcedBySelf {
					return -1
				}
				return 1
			}
			return a.At.Compare(b.At)
		})
		in := Incident{First: group[0]}
		for _, f := range group[1:] {
			if f.alike(in.First) {
				in.Same = append(in.Same, f)
			} else {
				in.After = append(in.After, f)
			}
		}
		out = append(out, in)
	}
	return out
}

// groups puts together what has one incident's number within one life of the
// supervisor, and what different workers said alike within a short time.
func groups(all []Failure) (out [][]Failure) {
next:
	for _, f := range all {
		for i, g := range out {
			first := g[0]
			near := f.At.Sub(g[len(g)-1].At).Abs() <= together
			if near && (f.Incident != 0 && f.Incident == first.Incident || f.alike(first) && !slices.ContainsFunc(g, func(o Failure) bool { return o.Worker == f.Worker })) {
				out[i] = append(g, f)
				continue next
			}
		}
		out = append(out, []Failure{f})
	}
	return out
}

// alike reports whether two deaths have one cause and one message, but for numbers.
func (f Failure) alike(o Failure) bool {
	return f.Cause == o.Cause && f.Signal == o.Signal && Fingerprint(f.Message) == Fingerprint(o.Message)
}
