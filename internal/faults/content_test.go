//go:build cassandra

package faults

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"bowstring/fetch/store"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// recipe says which blobs of the pool an import has. All importers draw from one
// pool, so that nearly each blob is put, freed and put again by many.
type recipe []int

const (
	poolSize = 150
	largeOf  = 75 // one of largeOf blobs is cut into parts
)

func poolBlob(i int) []byte {
	r := rand.New(rand.NewPCG(uint64(i), 2))
	n := 100 + r.IntN(4000)
	if i%largeOf == 7 {
		n += 1 << 20
	}
	b := make([]byte, n)
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(i))
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
	return b
}

func (r recipe) blobs() [][]byte {
	blobs := make([][]byte, len(r))
	for i, n := range r {
		blobs[i] = poolBlob(n)
	}
	return blobs
}

// digest is of all bytes and where one blob ends.
func digest(blobs [][]byte) string {
	h := sha256.New()
	for _, b := range blobs {
		fmt.Fprintln(h, len(b))
		_, _ = h.Write(b) // never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// patientFor is how long a patient import stays open on average. Most collections take less.
const patientFor = 6 * time.Second

// newest is the greatest number, 0 if there is none.
func newest(numbers []int64) int64 {
	if len(numbers) == 0 {
		return 0
	}
	return numbers[len(numbers)-1]
}

// importOne imports rows: new ones, or those of its last import again.
func (p *process) importOne(ctx context.Context) error {
	all, err := p.list(ctx)
	if err != nil || all == nil {
		return err
	}
	rows := p.last
	if len(rows) == 0 || p.rand.IntN(3) > 0 {
		rows = nil
		for range 4 + p.rand.IntN(12) {
			rows = append(rows, p.rand.IntN(poolSize))
		}
		p.last = rows
	}
	name := datasets[p.rand.IntN(len(datasets))]
	parent := newest(all[name])
	putting, cancel := context.WithTimeout(ctx, 2*opTimeout)
	defer cancel()
	in, err := p.store.Begin(putting, name)
	if err != nil {
		return nil // nothing was done, which is no part of the history
	}
	defer in.Close()
	data := rows.blobs()
	snap, err := storetest.Put(putting, hesitant{in, p}, data, 6)
	if err != nil || p.rand.IntN(8) == 0 { // or it changes its mind
		return nil // nothing can be seen, and whether it is collected is found out in the end
	}
	if p.Patient {
		// No other process has its own blobs, such as the manifest, or blobs that others drop meanwhile.
		p.pause(ctx, 2*patientFor)
		if all, err = p.list(ctx); err != nil || all == nil {
			return err
		}
		parent = newest(all[name])
	}
	e := Event{Do: Commit, Dataset: name, Parent: parent, Digest: digest(data)}
	e.Import = fmt.Sprintf("%s/%d", p.Name, p.op)
	return p.do(ctx, e, func(ctx context.Context, e *Event) (string, error) {
		snap.Parent, snap.Source = parent, e.Import
		made, err := in.Commit(ctx, snap)
		switch {
		case err == nil:
			e.Number = made.Number
		case errors.Is(err, schema.ErrConflict):
			return Fail, err
		case errors.Is(err, schema.ErrInvalid): // it says that what was put was not
			e.Damage = Missing
			return Fail, err
		}
		return OK, err
	})
}

// hesitant sometimes waits between two puts, for collections to come between.
type hesitant struct {
	store.Ingest
	p *process
}

func (h hesitant) Put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	if h.p.rand.IntN(30) == 0 {
		h.p.pause(ctx, 8*time.Second)
	}
	return h.Ingest.Put(ctx, data)
}

// readOne reads a snapshot, the newest or any.
func (p *process) readOne(ctx context.Context) error {
	all, err := p.list(ctx)
	name := datasets[p.rand.IntN(len(datasets))]
	have := all[name]
	if err != nil || len(have) == 0 {
		return err
	}
	n := have[len(have)-1]
	if p.rand.IntN(2) == 0 {
		n = have[p.rand.IntN(len(have))]
	}
	return p.read(ctx, name, n)
}

func (p *process) read(ctx context.Context, dataset string, n int64) error {
	return p.do(ctx, Event{Do: Read, Dataset: dataset, Number: n}, func(ctx context.Context, e *Event) (string, error) {
		snap, err := p.store.Snapshot(ctx, dataset, n)
		switch {
		case errors.Is(err, schema.ErrNotFound):
			e.Absent = true
			return OK, nil
		case errors.Is(err, schema.ErrDataLoss): // the snapshot is there, and its import is unknown
			e.Damage = Missing
			return Info, err
		case err != nil:
			return Info, err
		}
		p.using.Store(snap)
		defer p.using.Store(nil)
		e.Import = snap.Source
		got, err := storetest.Read(ctx, slow{p.store, p}, snap)
		switch {
		case errors.Is(err, schema.ErrNotFound):
			e.Damage = Missing
		case errors.Is(err, schema.ErrDataLoss):
			e.Damage = Wrong
		case err != nil:
			return Info, err
		}
		if err != nil {
			e.Error = err.Error()
			return OK, nil // it is known what was found
		}
		e.Digest = digest(got)
		return OK, nil
	})
}

// slow is a store whose reader sometimes waits between two blobs.
type slow struct {
	store.Store
	p *process
}

func (s slow) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	if s.p.rand.IntN(100) == 0 {
		s.p.pause(ctx, 3*time.Second)
	}
	return s.Store.Get(ctx, ref)
}
