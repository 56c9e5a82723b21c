package source

import (
	"context"
	"slices"
)

// Estimate is what it takes to read a data set in a bucket, before that is begun. Numbers are estimates where they
// depend on what the files hold.
type Estimate struct {
	Files int64 // that are read
	Bytes int64 // that they have
	// Through is what reading all of them takes, and Walked what reading takes with
	// Options.Walk: the same, if a format has to be read to find its samples.
	Through, Walked Toll
}

// Toll is what is asked of a bucket.
type Toll struct {
	Requests int64
	Bytes    int64
}

// Walks reports whether walking takes anything else than reading through.
func (e Estimate) Walks() bool { return e.Walked != e.Through }

// Estimate implements Source.
func (a *about) Estimate() Estimate { return a.estimate }

// estimateWhole is the estimate of files that are each read whole, as often as times says, in stretches.
func (f *Files) estimateWhole(paths []string, times int64) Estimate {
	var e Estimate
	for _, p := range paths {
		info, err := f.stat(p)
		if err != nil {
			continue
		}
		e.Files++
		e.Bytes += info.Size()
		e.Through.Requests += max(1, (info.Size()+stretch-1)/stretch)
		e.Through.Bytes += info.Size()
	}
	if e.Bytes > twiceBytes { // less is kept from the first time
		e.Through.Requests *= times
		e.Through.Bytes *= times
	}
	e.Walked = e.Through
	return e
}

// add adds a file that is a blob. Walking does not read it.
func (e *Estimate) add(f *Files, path string) {
	info, err := f.stat(path)
	if f.bucket() == nil || err != nil {
		return
	}
	e.Files++
	e.Bytes += info.Size()
	e.Through.Requests++
	e.Through.Bytes += info.Size()
}

// tarPasses is how often tars are read: for their columns, and for their samples.
const tarPasses = 2

// estimateTars is the estimate of tars, by the members of the first.
func (f *Files) estimateTars(ctx context.Context, shards []shard) Estimate {
	e := f.estimateWhole(paths(shards), tarPasses)
	if size, n := f.memberSize(ctx, shards); n > 0 {
		// Members within a window come with the header before them.
		apart := max(size/n, windowBytes)
		passes := int64(tarPasses)
		if e.Bytes/max(1, size/n)*2*keptMember <= keptBytes { // headers are kept from the first one
			passes = 1
		}
		e.Walked.Requests = passes * max(e.Files, e.Bytes/apart)
		if f.allNamed(shards) { // an index that names members takes the place of most headers
			e.Walked.Requests = min(e.Walked.Requests, passes*e.Files*(indexChecks+3))
		}
		e.Walked.Bytes = min(e.Through.Bytes, e.Walked.Requests*windowBytes)
		if apart >= largeMember && e.Bytes > twiceBytes { // they are passed over for their columns in any case
			e.Through = f.estimateWhole(paths(shards), 1).Through
			e.Through.Requests += e.Walked.Requests / passes
			e.Through.Bytes += e.Walked.Bytes / passes
		}
	}
	return e
}

// allNamed reports whether each tar has an index that may name its members.
func (f *Files) allNamed(shards []shard) bool {
	return f.bucket() != nil && f.indexes == IndexSample && !slices.ContainsFunc(shards, func(sh shard) bool {
		_, err := f.stat(DALIIndex.Name(sh.path))
		return err != nil && sh.read()
	})
}

// begin keeps the estimate, and asks whether to walk and to go on.
func (a *about) begin(opts Options, e Estimate) error {
	a.estimate = e
	if opts.Decide != nil && e.Walks() {
		a.walked = opts.Decide(e)
		a.place.lazy = a.walked
	}
	if opts.Begin == nil {
		return nil
	}
	return opts.Begin(e)
}
