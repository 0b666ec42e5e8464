// Package journal keeps a run's journal: the append-only record of what was
// planned, decided and settled, which recovery reads.
//
// A journal is a directory of segments NNNNNN.journal. A segment is a header
// and frames:
//
//	header  magic "DFJOURN1", segment u32, run 16 bytes, SHA-256 of the segment
//	        before (zeros in the first), CRC-32C of all that
//	frame   length u32, CRC-32C u32, then what both are about:
//	        number u64, durable u64, type u8, payload
//
// all little-endian. number counts records from 1 through the whole journal.
// durable is the newest number that was known to be on the disk when the frame
// was written: it tells a torn tail, which a crash leaves behind and which is
// cut, from damage to what had been durable, which is refused. A tail is cut
// in the newest segment only.
//
// There is one writer, held off by a lock file. The format's version is in the
// magic; testdata holds a journal of every version that can be read.
package journal
