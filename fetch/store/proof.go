package store

import (
	"context"
	"encoding/binary"
	"fmt"

	"bowstring/schema"
)

// Prover is a store with blobs whose checksums nothing knew when they were attached ([schema.BlobRef.Unproven]). The first
// read of such a blob, by any process, gives it its checksum for good.
type Prover interface {
	// LearnProofs has in memory what is known of a snapshot's blobs by now, from whichever process.
	LearnProofs(ctx context.Context, snap *schema.Snapshot) error
	// Proven returns the reference with its checksum, if that is known by now; else ref as it is. It does not block.
	Proven(ref schema.BlobRef) schema.BlobRef
	// Prove takes the content of an unproven blob, as it was just read in the version
	// that was attached, and returns the reference with its checksum. It is a
	// schema.ErrDataLoss if the blob had another content before. New checksums are stored
	// soon after, many together.
	Prove(ctx context.Context, ref schema.BlobRef, data []byte) (schema.BlobRef, error)
	// KeepProofs keeps in the store what Prove has learned and is not kept yet. Close does so, too.
	KeepProofs(ctx context.Context) error
	// Proof says how much of a snapshot has a checksum, of what had none when it was made.
	Proof(ctx context.Context, snap *schema.Snapshot) (Proof, error)
}

// ProofStats are a process's counters of checksums that first reads give.
type ProofStats struct {
	Learned  int64 `json:"learned"`  // checksums that first reads gave
	Compared int64 `json:"compared"` // reads that were compared with one that was learned before
	Wrong    int64 `json:"wrong"`    // of those, and of what other processes have kept, which differed
	Waiting  int64 `json:"waiting"`  // that are not kept yet
}

// ProofCounter is a Prover that counts.
type ProofCounter interface {
	ProofStats() ProofStats
}

// ProofStatsOf returns the counters of the prover that a store is or is wrapped around; zeroes if there is none.
func ProofStatsOf(s Store) ProofStats {
	if c, ok := As[ProofCounter](s); ok {
		return c.ProofStats()
	}
	return ProofStats{}
}

// ProverOf returns the prover that a store is or is wrapped around; one that knows no checksum if there is none.
func ProverOf(s Store) Prover {
	if s == nil {
		return noProver{}
	}
	if p, ok := As[Prover](s); ok {
		return p
	}
	return noProver{}
}

type noProver struct{}

// Proven implements Prover.
func (noProver) Proven(ref schema.BlobRef) schema.BlobRef { return ref }

// Prove implements Prover.
func (noProver) Prove(_ context.Context, ref schema.BlobRef, _ []byte) (schema.BlobRef, error) {
	return schema.BlobRef{}, fmt.Errorf("%w: blob %s was attached without being read, and this store keeps no checksums",
		schema.ErrNotSupported, ref.Key)
}

// LearnProofs implements Prover.
func (noProver) LearnProofs(context.Context, *schema.Snapshot) error { return nil }

// KeepProofs implements Prover.
func (noProver) KeepProofs(context.Context) error { return nil }

// Proof implements Prover.
func (noProver) Proof(_ context.Context, snap *schema.Snapshot) (p Proof, _ error) {
	p.of(snap)
	return p, nil
}

// Proof is how much has a checksum of what had none when a snapshot was attached: each blob counts once.
type Proof struct {
	Blobs   int64 `json:"blobs"` // that have one by now
	Bytes   int64 `json:"bytes"`
	OfBlobs int64 `json:"of_blobs"`
	OfBytes int64 `json:"of_bytes"`
}

// of counts what had none.
func (p *Proof) of(snap *schema.Snapshot) {
	for _, set := range snap.Sets {
		p.OfBlobs += set.Unproven.Blobs
		p.OfBytes += set.Unproven.Bytes
	}
}

// ProofOf is the proof of a snapshot. count says how much was learned of a set.
func ProofOf(snap *schema.Snapshot, count func(schema.ObjectPrefix) (schema.Unproven, error)) (p Proof, err error) {
	p.of(snap)
	for _, set := range snap.Sets {
		if set.Unproven.IsZero() {
			continue
		}
		n, err := count(set.Prefix)
		if err != nil {
			return p, err
		}
		p.Blobs += min(n.Blobs, set.Unproven.Blobs) // what was read of another snapshot's rows is no more than all
		p.Bytes += min(n.Bytes, set.Unproven.Bytes)
	}
	return p, nil
}

// ProofRun is a blob of the store with checksums of blobs of one object set: see [EncodeProofRun].
type ProofRun struct {
	schema.BlobRef
	schema.Unproven // how many it has a checksum of
}

// A Learned is a checksum that was learned.
type Learned struct {
	Stand schema.Sum // what stood in its place
	Sum   schema.Sum
}

const (
	proofMagic  = "BOWPROOF"
	proofHeader = len(proofMagic) + len(schema.ObjectPrefix{}) + 4
	proofEntry  = 16
)

// EncodeProofRun writes checksums, which ascend by what stood for them, in the form that docs/formats.md describes.
func EncodeProofRun(prefix schema.ObjectPrefix, list []Learned) []byte {
	data := make([]byte, 0, proofHeader+proofEntry*len(list))
	data = append(data, proofMagic...)
	data = append(data, prefix[:]...)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(list)))
	for _, l := range list {
		data = binary.LittleEndian.AppendUint64(data, uint64(l.Stand))
		data = binary.LittleEndian.AppendUint64(data, uint64(l.Sum))
	}
	return data
}

// Each visits the checksums of a run, whose content is data, until visit fails. Bytes that EncodeProofRun did not write for
// that set are a schema.ErrDataLoss, as is a page of a mapped file that cannot be read.
func (r ProofRun) Each(prefix schema.ObjectPrefix, data []byte, visit func(Learned) error) error {
	if err := r.Check(data); err != nil {
		return err
	}
	return schema.Guard(func() error {
		if len(data) < proofHeader || string(data[:len(proofMagic)]) != proofMagic ||
			schema.ObjectPrefix(data[len(proofMagic):]) != prefix ||
			int64(len(data)-proofHeader) != proofEntry*int64(binary.LittleEndian.Uint32(data[proofHeader-4:])) {
			return fmt.Errorf("%w: %d bytes are no checksums of object set %s", schema.ErrDataLoss, len(data), prefix)
		}
		before := schema.Sum(0)
		for at := proofHeader; at < len(data); at += proofEntry {
			l := Learned{schema.Sum(binary.LittleEndian.Uint64(data[at:])), schema.Sum(binary.LittleEndian.Uint64(data[at+8:]))}
			if at > proofHeader && l.Stand <= before {
				return fmt.Errorf("%w: the checksums of object set %s are out of order", schema.ErrDataLoss, prefix)
			}
			before = l.Stand
			if err := visit(l); err != nil {
				return err
			}
		}
		return nil
	})
}

// BytesOf is about how many bytes some of the blobs of a run have.
func (r ProofRun) BytesOf(blobs int64) int64 {
	return int64(float64(r.Bytes) * float64(blobs) / float64(max(r.Blobs, 1)))
}
