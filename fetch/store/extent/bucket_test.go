package extent_test

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"iter"
	"sync"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// pail is a bucket in memory.
type pail struct {
	url string

	mu      sync.Mutex
	objects map[string][]byte
	reads   int
	ranges  []string // as they were read
	closed  int
	before  func(ctx context.Context, key string) error // called before each read, without mu
	spoil   func(key string, buf []byte)                // changes what was read, and not the version
}

func newPail(url string) *pail { return &pail{url: url, objects: map[string][]byte{}} }

func versionOf(data []byte) schema.ObjectVersion {
	sum := md5.Sum(data)
	return schema.ObjectVersion{ETag: hex.EncodeToString(sum[:])}
}

func (p *pail) put(key string, data []byte) schema.Object {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.objects[key] = data
	return schema.Object{Key: key, Size: int64(len(data)), Version: versionOf(data)}
}

func (p *pail) remove(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.objects, key)
}

func (p *pail) URL() string { return p.url }

func (p *pail) Range(ctx context.Context, key string, v schema.ObjectVersion, offset int64, buf []byte) error {
	if p.before != nil {
		if err := p.before(ctx, key); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	p.ranges = append(p.ranges, fmt.Sprintf("%s %d+%d", key, offset, len(buf)))
	data, ok := p.objects[key]
	if !ok {
		return fmt.Errorf("%w: object %s", schema.ErrNotFound, key)
	}
	if have := versionOf(data); !v.IsZero() && have != v {
		return &object.ChangedError{Bucket: p.url, Key: key, Want: v, Have: have}
	}
	if offset+int64(len(buf)) > int64(len(data)) {
		return fmt.Errorf("%w: a range beyond the end", schema.ErrInvalid)
	}
	copy(buf, data[offset:])
	if p.spoil != nil {
		p.spoil(key, buf)
	}
	return nil
}

func (p *pail) Get(context.Context, string, schema.ObjectVersion, int64) ([]byte, object.Info, error) {
	return nil, object.Info{}, schema.ErrNotSupported
}

func (p *pail) Stat(context.Context, string) (object.Info, error) {
	return object.Info{}, schema.ErrNotSupported
}

func (p *pail) List(context.Context, object.ListOptions) iter.Seq2[object.Info, error] { return nil }

func (p *pail) Put(context.Context, string, []byte, object.Condition) (object.Info, object.Outcome, error) {
	return object.Info{}, object.Failed, schema.ErrNotSupported
}

func (p *pail) Delete(context.Context, string) error { return schema.ErrNotSupported }

func (p *pail) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed++
	return nil
}

// pails opens buckets by their URLs.
type pails struct {
	mu     sync.Mutex
	all    map[string]*pail
	opened int
	fails  error
}

func newPails(list ...*pail) *pails {
	p := &pails{all: map[string]*pail{}}
	for _, one := range list {
		p.all[one.url] = one
	}
	return p
}

func (p *pails) open(_ context.Context, url string) (object.Bucket, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened++
	if p.fails != nil {
		return nil, p.fails
	}
	one := p.all[url]
	if one == nil {
		return nil, fmt.Errorf("%w: no bucket %s", schema.ErrNotFound, url)
	}
	return one, nil
}
