package bucket

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// Proof is what a bucket has proven: if several writers change an object at the same
// time, each on the condition that it is as they have read it, none of them loses
// another's change. A store commits by such writes. Many servers accept conditions
// without keeping them. Others keep them at one endpoint and not across several.
type Proof struct {
	// Changes is the number of conditional writes that were made and found again.
	// Creations is the number of objects that exactly one of several writers has created.
	Changes, Creations int
	// Requests is about how many requests the proof took.
	Requests int64
}

const (
	// proofWriters change one object at the same time, proofChanges times each. With
	// these numbers each server that loses updates was found in each of 8 runs; with half
	// of them it was not.
	proofWriters = 16
	proofChanges = 5
	proofRounds  = 3
	// proofCreations is how many objects all writers try to create.
	proofCreations = 12
	proofWithin    = 5 * time.Minute
)

// proof is a proof in progress, with objects under a prefix that nothing else uses. Its
// methods return refused if the bucket has failed.
type proof struct {
	buckets  []object.Bucket // the same one by several endpoints
	prefix   string
	requests atomic.Int64
}

// prove makes the proof, and removes the objects that it has written.
func prove(ctx context.Context, buckets []object.Bucket, prefix string) (done Proof, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, proofWithin, fmt.Errorf("%w: it takes longer than %s", schema.ErrUnavailable,
		proofWithin))
	defer cancel()
	// Conditions with one writer come first: most servers that ignore them fail there,
	// with few requests.
	p := &proof{buckets: buckets, prefix: prefix}
	defer func() {
		p.clean(context.WithoutCancel(ctx))
		done.Requests = p.requests.Load()
	}()
	if err := p.conditions(ctx); err != nil {
		return done, err
	}
	for n := range proofCreations {
		if err := p.create(ctx, n); err != nil {
			return done, err
		}
		done.Creations++
	}
	for n := range proofRounds {
		made, err := p.count(ctx, n)
		done.Changes += made
		if err != nil {
			return done, err
		}
	}
	return done, p.listed(ctx)
}

// refused is the error for a bucket that has shown that it does not keep conditions.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: the bucket does not keep conditional writes, by which a store commits: %s. Snapshots would be lost "+
		"in it, without a word. Amazon S3, Google Cloud Storage, Azure Blob Storage, versitygw, MinIO and SeaweedFS keep them",
		schema.ErrNotSupported, fmt.Sprintf(format, args...))
}

// bucket returns the endpoint for the n-th request: all endpoints in turn.
func (p *proof) bucket(n int) object.Bucket { return p.buckets[n%len(p.buckets)] }

// put makes one write, without repeating it.
func (p *proof) put(ctx context.Context, n int, key string, body []byte,
	c object.Condition) (object.Info, object.Outcome, error) {
	p.requests.Add(1)
	return p.bucket(n).Put(ctx, p.prefix+key, body, c)
}

// get reads an object, and repeats that if the server is unavailable.
func (p *proof) get(ctx context.Context, n int, key string) (data []byte, info object.Info, err error) {
	for try := 0; ; try++ {
		p.requests.Add(1)
		data, info, err = p.bucket(n).Get(ctx, p.prefix+key, schema.ObjectVersion{}, 1<<20)
		if err == nil || !errors.Is(err, schema.ErrUnavailable) || try == tries-1 {
			return data, info, err
		}
		if err := pauseAfter(ctx, err, try); err != nil {
			return nil, info, err
		}
	}
}

// conditions checks, with one writer, that a write is refused if its condition does not
// hold.
func (p *proof) conditions(ctx context.Context) error {
	// Each step uses the next endpoint, so that conditions have to hold across them.
	first, outcome, err := p.put(ctx, 0, "conditions", []byte("first"), object.Condition{Absent: true})
	if outcome != object.Made {
		return fmt.Errorf("write into the bucket: %w", err)
	}
	if first.Version.IsZero() {
		return refused("the server does not say which version it has written")
	}
	if _, outcome, err = p.put(ctx, 1, "conditions", []byte("second"), object.Condition{Absent: true}); outcome == object.Made {
		return refused("a write that was to create an object was made though the object was there")
	} else if outcome != object.Moved {
		return fmt.Errorf("write into the bucket where an object is there: %w", err)
	}
	second, outcome, err := p.put(ctx, 2, "conditions", []byte("third"), object.Condition{Version: first.Version})
	if outcome == object.Moved {
		return refused("a write on the condition that the object is as it was written was refused, though it was not changed")
	} else if outcome != object.Made {
		return fmt.Errorf("write into the bucket on a condition: %w", err)
	}
	if _, outcome, err = p.put(ctx, 3, "conditions", []byte("fourth"), object.Condition{Version: first.Version}); outcome == object.Made {
		return refused("a write on the condition that the object has %s was made, though it had %s", first.Version, second.Version)
	} else if outcome != object.Moved {
		return fmt.Errorf("write into the bucket on a condition that does not hold: %w", err)
	}
	for n := range p.buckets {
		data, _, err := p.get(ctx, n, "conditions")
		if err != nil {
			return fmt.Errorf("read from the bucket: %w", err)
		}
		if string(data) != "third" {
			return refused("the object has the content of a write that was refused, or an older one than was written, at %s",
				p.bucket(n).URL())
		}
	}
	return nil
}

// create lets all writers create one object at the same time. Exactly one must succeed,
// and get the answer that it has.
func (p *proof) create(ctx context.Context, n int) error {
	key := fmt.Sprintf("create-%d", n)
	// All writers start together, each at its own endpoint.
	outcomes := make([]object.Outcome, proofWriters)
	var g errgroup.Group
	for w := range proofWriters {
		g.Go(func() (err error) {
			_, outcomes[w], err = p.put(ctx, w, key, fmt.Appendf(nil, "%d", w), object.Condition{Absent: true})
			if outcomes[w] == object.Failed && !errors.Is(err, schema.ErrUnavailable) {
				return fmt.Errorf("write into the bucket: %w", err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	data, _, err := p.get(ctx, n, key)
	if err != nil {
		return fmt.Errorf("read what one of %d writers has created: %w", proofWriters, err)
	}
	// An uncertain outcome may be a success, so it neither proves nor refutes anything.
	var reported []int
	uncertain := false
	for w, outcome := range outcomes {
		if outcome == object.Made {
			reported = append(reported, w)
		}
		uncertain = uncertain || outcome == object.Uncertain
	}
	switch {
	case len(reported) > 1:
		return refused("of %d writers that created one object at the same time, %d got the answer that they have", proofWriters,
			len(reported))
	case len(reported) == 1 && string(data) != fmt.Sprint(reported[0]):
		return refused("of %d writers that created one object at the same time, number %d got the answer that it has, and number %s has",
			proofWriters, reported[0], data)
	case len(reported) == 0 && !uncertain:
		return refused("of %d writers that created one object at the same time, none got the answer that it has, and number %s has",
			proofWriters, data)
	}
	return nil
}

// counter is the content of an object that writers change: the changes in order.
type counter struct {
	Made  []string `json:"made"`
	Nonce string   `json:"nonce"`
}

// count lets writers change one object at the same time. Every change that the bucket has
// confirmed must be in the object afterwards.
func (p *proof) count(ctx context.Context, round int) (made int, err error) {
	key := fmt.Sprintf("count-%d", round)
	if _, outcome, err := p.put(ctx, 0, key, []byte(`{}`), object.Condition{Absent: true}); outcome != object.Made {
		return 0, fmt.Errorf("write into the bucket: %w", err)
	}
	g, within := errgroup.WithContext(ctx)
	for w := range proofWriters {
		g.Go(func() error {
			for i := range proofChanges {
				if err := p.change(within, w, key, fmt.Sprintf("%d.%d", w, i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	const all = proofWriters * proofChanges
	for n := range p.buckets {
		data, _, err := p.get(ctx, n, key)
		if err != nil {
			return 0, fmt.Errorf("read from the bucket: %w", err)
		}
		var c counter
		if err := json.Unmarshal(data, &c); err != nil {
			return 0, refused("what %d writers have changed is no JSON any more: %s", proofWriters, err)
		}
		slices.Sort(c.Made)
		if distinct := len(slices.Compact(c.Made)); distinct != all {
			return 0, refused("%d writers changed one object %d times, each on the condition that it is as it was read, and were "+
				"answered that all changes were made; %d of them are there, at %s", proofWriters, all, distinct, p.bucket(n).URL())
		}
	}
	return all, nil
}

// change makes one change. If an answer was lost, it reads whether the change was made.
func (p *proof) change(ctx context.Context, w int, key, id string) error {
	const most = 1000
	for try := range most {
		data, info, err := p.get(ctx, w+try, key)
		if err != nil {
			return fmt.Errorf("read from the bucket: %w", err)
		}
		var c counter
		if err := json.Unmarshal(data, &c); err != nil {
			return refused("what %d writers change is no JSON any more: %s", proofWriters, err)
		}
		// The change is recognized by its id, as a store recognizes its swap by the rows.
		if slices.Contains(c.Made, id) {
			return nil // an attempt whose answer was lost
		}
		// The nonce makes the bytes differ from those of any other attempt, and so the
		// ETag.
		c.Made, c.Nonce = append(c.Made, id), rand.Text()
		body, err := json.Marshal(c)
		if err != nil {
			return err
		}
		switch _, outcome, err := p.put(ctx, w+try, key, body, object.Condition{Version: info.Version}); {
		case outcome == object.Made:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case outcome == object.Failed && !errors.Is(err, schema.ErrUnavailable):
			return fmt.Errorf("write into the bucket: %w", err)
		case outcome != object.Moved:
			if err := pauseAfter(ctx, err, min(try, 3)); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("%w: a write to one object was refused %d times in a row", schema.ErrUnavailable, most)
}

// listed checks that the written objects are listed at each endpoint. Collections depend
// on complete lists.
func (p *proof) listed(ctx context.Context) error {
	for n := range p.buckets {
		have := map[string]bool{}
		p.requests.Add(1)
		for info, err := range p.bucket(n).List(ctx, object.ListOptions{Prefix: p.prefix}) {
			if err != nil {
				return fmt.Errorf("list the bucket: %w", err)
			}
			have[info.Key] = true
		}
		if want := 1 + proofCreations + proofRounds; len(have) != want {
			return fmt.Errorf("%w: the bucket does not list what was written to it: %d objects of %d, at %s", schema.ErrNotSupported,
				len(have), want, p.bucket(n).URL())
		}
	}
	return nil
}

// clean removes the objects that the proof has written. If it fails, some small objects
// remain.
func (p *proof) clean(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	for info, err := range p.bucket(0).List(ctx, object.ListOptions{Prefix: p.prefix}) {
		if err != nil {
			return
		}
		p.requests.Add(1)
		_ = p.bucket(0).Delete(ctx, info.Key) // as said
	}
}
