// Package view shows a run to a person: as a live view on a terminal, or as
// plain lines where there is none. Both see nothing but admin.Status.
package view
