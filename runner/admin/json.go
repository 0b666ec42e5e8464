package admin

import "encoding/json"

// MarshalJSON writes lists that are empty as [], never as null.
func (s Status) MarshalJSON() ([]byte, error) {
	type plain Status
	s.Workers, s.Arenas, s.Failures, s.Devices = list(s.Workers), list(s.Arenas), list(s.Failures), list(s.Devices)
	s.Stages, s.Images, s.Degraded, s.Losses, s.Decisions = list(s.Stages), list(s.Images), list(s.Degraded), list(s.Losses), list(s.Decisions)
	s.Gate.Holders, s.Gate.Queue = list(s.Gate.Holders), list(s.Gate.Queue)
	return json.Marshal(plain(s))
}

// MarshalJSON writes a list that is empty as [].
func (a ArenaStatus) MarshalJSON() ([]byte, error) {
	type plain ArenaStatus
	a.Slots = list(a.Slots)
	return json.Marshal(plain(a))
}

// MarshalJSON writes lists that are empty as [].
func (s Summary) MarshalJSON() ([]byte, error) {
	type plain Summary
	s.Workers, s.Arenas, s.Failures = list(s.Workers), list(s.Arenas), list(s.Failures)
	s.Degraded, s.Stages, s.Gate.Sequence = list(s.Degraded), list(s.Stages), list(s.Gate.Sequence)
	return json.Marshal(plain(s))
}

func list[T any](in []T) []T {
	if in == nil {
		return []T{}
	}
	return in
}
