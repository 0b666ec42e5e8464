// Package simulate runs the step loop without workers: a discrete-event model
// of targets, slots, hand-offs, row buffers, turns on shared devices, the sum of
// gradients, commits and images, on costs that a trace gives. It is pure: the
// same setup gives the same result, to the nanosecond.
//
// # What is modelled
//
// Rules are those of the core. Rows are numbered in the order in which they are
// trained; row i of a step belongs to rank i modulo drafters. A target makes the
// lowest row that nobody made, needs a free slot for it and a turn of its
// device. A drafter has two row buffers and one copy thread; a pull needs no
// turn, and frees the slot when it ends. Of rows of a later step at most one may
// lie ready while a step is undecided. A micro-step needs its row and a turn;
// the last of a step starts on all ranks together, holds every turn of their
// devices, and ends for all when the slowest is done and the gradients are
// summed. Then come the votes, the decision, which waits for the copy of an image, and
// a commit on each rank, which needs a turn; the next step opens when all have
// committed. Where drafters have devices of one turn, with one target at most, a
// row of a later step is begun only if it fits before that last micro-step by what
// rows and micro-steps took lately (package pace). A free turn goes to a drafter before a target, and among those alike
// to whoever was served longest ago. A test of the core feeds random setups to
// both, and compares who is given which turn, and when, to the nanosecond; votes
// and images are left out there, as the core does not know what they take.
//
// Nodes are cells: a row is made and trained on one node, and only gradients
// cross. Deaths, evaluations and warm-up are not modelled.
//
// # What it is not
//
// A measurement. What it gives is predicted, and how near that comes is known
// for the runs that its test compares it with, and for no other machine.
package simulate
