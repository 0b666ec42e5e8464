// Package rows decides what a run trains on, and when: it reads the data
// index, packs samples into rows of the buckets' lengths, shares out each
// row's anchor places, and lays rows out into step plans. Everything here is a
// pure function of the index, the configuration and the order of samples, so
// that a resumed run and `journal verify` come to the same rows.
//
// It imports the standard library and runner alone, and does no I/O.
package rows
