package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// tarSamples groups the members of a tar into samples.
type tarSamples struct {
	source *webDataset
	shard  shard
	yield  func(Sample, error) bool

	group          // the sample being put together, if has is not nil
	sample  Sample // it
	buffers [][]byte
	done    int // samples yielded
}

func (r *tarSamples) describe(err error) string {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", errCut, err)
	}
	what := fmt.Sprintf("after %d samples", r.done)
	if r.has != nil {
		what += ", at " + Quoted(r.key)
	}
	return what + ": " + err.Error()
}

func (r *tarSamples) read(ctx context.Context) (err error) {
	t, err := openTar(r.shard.path, false)
	if err != nil {
		return errors.New(reason(err))
	}
	defer func() {
		if cerr := t.close(); err == nil {
			err = cerr
		}
	}()
	defer func() {
		// What was being put together when the tar broke off may lack members.
		buffers.putAll(r.buffers)
	}()
	for ctx.Err() == nil {
		m, err := t.next()
		if errors.Is(err, io.EOF) {
			if err := t.checkEnd(); err != nil {
				return err
			}
			return r.end()
		}
		if errors.Is(err, errJunk) { // behind an end mark, so that the sample is whole
			return cmp.Or(r.end(), err)
		}
		if err != nil {
			return err
		}
		if !r.takes(m) {
			if err := r.end(); err != nil {
				return err
			}
			r.begin(m.key)
		}
		if err := r.member(t, m); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

func (r *tarSamples) begin(key string) {
	s := r.source
	r.group = group{key: key, has: map[string]bool{}}
	r.sample = Sample{Key: sampleKey(r.shard, key), Split: r.shard.split,
		Meta: make([]any, len(s.meta)), Blobs: make([][]byte, len(s.blobs))}
	switch found := s.keys[r.sample.Key]; {
	case found == nil:
		r.bad("the tar changed while it was read")
	case found.apart != "":
		r.bad("%s", found.apart)
	case found.run == s.run:
		r.bad("duplicate: the key is in %s already", Quoted(s.shards[found.shard].rel))
	default:
		found.run = s.run
	}
}

// end yields the sample that was put together.
func (r *tarSamples) end() error {
	if r.has == nil {
		return nil
	}
	s, buf := r.source, r.buffers
	r.buffers = nil
	r.sample.Release = func() { buffers.putAll(buf) }
	missing := !slices.ContainsFunc(r.sample.Blobs, func(b []byte) bool { return b != nil })
	switch {
	case r.sample.Bad != "":
	case s.label && !r.has["cls"]:
		r.sample.Bad = "label missing: it has no cls member"
	case missing && len(s.blobs) == 1:
		r.sample.Bad = s.blobs[0].Name + " missing"
	case missing && len(s.blobs) > 1:
		r.sample.Bad = "it has none of " + quotedList(fieldNames(s.blobs))
	}
	r.has = nil
	r.done++
	if !r.yield(r.sample, nil) {
		return errStop
	}
	return nil
}

// member adds a member to the sample. An error is one of the tar.
func (r *tarSamples) member(t *tarReader, found tarMember) error {
	s := r.source
	if found.problem != "" {
		r.bad("%s", found.problem)
		return nil
	}
	r.has[found.ext] = true
	if why := s.refused[found.ext]; why != "" {
		r.bad("member %s: %s", Quoted(found.name), why)
		return nil
	}
	m, ok := s.members[found.ext]
	switch {
	case !ok:
		r.bad("unknown member %s: the tar changed while it was read", Quoted(found.name))
		return nil
	case m.kind == memberLeft:
		return nil
	case m.kind != memberBlob && found.size > maxText:
		r.bad("member %s has %d bytes, more than the %d that metadata may have", Quoted(found.name), found.size,
			maxText)
		return nil
	case m.kind == memberBlob && r.sample.Blobs[m.column] != nil:
		r.bad("two members for column %s", Quoted(s.blobs[m.column].Name))
		return nil
	case found.size > maxBlob-r.sample.Size:
		r.bad("with member %s it has %d bytes, more than the %d that a sample may have", Quoted(found.name),
			r.sample.Size+found.size, int64(maxBlob))
		return nil
	}
	if m.kind != memberBlob {
		data, err := io.ReadAll(t)
		if err != nil {
			return err
		}
		r.sample.Size += int64(len(data))
		r.metadata(m, found.ext, data)
		return nil
	}
	buf, err := readBuffer(t, found.size)
	if err != nil {
		return err
	}
	r.buffers = append(r.buffers, buf)
	r.sample.Blobs[m.column] = buf
	r.sample.Size += found.size
	if m.column == 0 && r.source.pathAt >= 0 {
		r.sample.Meta[s.pathAt] = found.name
	}
	return nil
}

func (r *tarSamples) bad(format string, args ...any) {
	if r.sample.Bad == "" {
		r.sample.Bad = fmt.Sprintf(format, args...)
	}
}

func (r *tarSamples) metadata(m member, ext string, data []byte) {
	switch m.kind {
	case memberInt:
		n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			r.bad("member .%s holds %.40q, want a whole number", ext, data)
			return
		}
		r.sample.Meta[m.column] = n
	case memberText:
		r.sample.Meta[m.column] = string(data)
	case memberJSON:
		values, err := parseJSONMember(ext, string(data))
		if err != nil {
			r.bad("%s", err)
			return
		}
		// What it becomes takes more than its text; it is done with before the sample ends.
		r.sample.Size += valueBytes(data)
		for k, v := range values {
			if at, ok := r.source.jsonAt[k]; ok {
				r.sample.Meta[at] = r.source.json[k].convert(v)
			}
		}
	}
}
