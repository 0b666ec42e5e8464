package runner

import "time"

// Level says how much a person should care about an event.
type Level string

// The levels: a state change, degraded but decided, a human should look.
const (
	Info  Level = "info"
	Warn  Level = "warn"
	Alarm Level = "error"
)

// Event is what happened, for people: it becomes a log line and a line of
// events.jsonl, and may be lost. Name is a lowercase constant phrase.
type Event struct {
	At         time.Time          `json:"at"`
	Level      Level              `json:"level"`
	Name       string             `json:"event"`
	Worker     *Worker            `json:"worker,omitempty"`
	Generation Generation         `json:"generation,omitempty"`
	Step       Step               `json:"step,omitempty"`
	Row        Row                `json:"row,omitempty"`
	Lineage    Lineage            `json:"lineage,omitempty"`
	Message    string             `json:"message,omitempty"`
	Hint       string             `json:"hint,omitempty"`
	Failure    *Failure           `json:"failure,omitempty"`
	Figures    map[string]float64 `json:"figures,omitempty"`
}
