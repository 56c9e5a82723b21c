package source

import (
	"context"
	"slices"
)

// Estimate is what reading a data set in a bucket costs. It is made before reading
// begins. Numbers that depend on the contents of files are estimates.
type Estimate struct {
	// Files is how many files are read, and Bytes their total size.
	Files int64
	Bytes int64
	// Through is the cost of reading all files. Walked is the cost with Options.Walk.
	// They are equal if a format must be read to find its samples.
	Through, Walked Toll
}

// Toll is a number of requests to a bucket and of bytes from it: what a cloud provider
// charges for.
type Toll struct {
	Requests int64
	Bytes    int64
}

// Walks reports whether walking costs anything else than reading everything.
func (e Estimate) Walks() bool { return e.Walked != e.Through }

// Estimate implements Source.
func (a *about) Estimate() Estimate { return a.estimate }

// estimateWhole estimates reading each file whole, in sequential parts of size stretch.
// times is how often the importer reads it. Files that cannot be described are left out:
// reading them fails later, with a better error.
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
	// Up to twiceBytes the first pass keeps what it reads, and further passes cost
	// nothing.
	if e.Bytes > twiceBytes {
		e.Through.Requests *= times
		e.Through.Bytes *= times
	}
	e.Walked = e.Through
	return e
}

// add adds a file that is itself a blob. Walking does not read such a file.
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

// tarPasses is how often tars are read: once for their columns, once for their samples.
const tarPasses = 2

// estimateTars estimates reading tars, by the first members of the first tar. Shards of
// one data set have members of similar sizes.
func (f *Files) estimateTars(ctx context.Context, shards []shard) Estimate {
	e := f.estimateWhole(paths(shards), tarPasses)
	if size, n := f.memberSize(ctx, shards); n > 0 {
		// A request for a header brings windowBytes, and with it all members within.
		apart := max(size/n, windowBytes)
		passes := int64(tarPasses)
		if e.Bytes/max(1, size/n)*2*keptMember <= keptBytes { // headers are kept after the first pass
			passes = 1
		}
		e.Walked.Requests = passes * max(e.Files, e.Bytes/apart)
		if f.allNamed(shards) { // an index that names members replaces most headers
			e.Walked.Requests = min(e.Walked.Requests, passes*e.Files*(indexChecks+3))
		}
		// Walking never reads more than the tars have.
		e.Walked.Bytes = min(e.Through.Bytes, e.Walked.Requests*windowBytes)
		if apart >= largeMember && e.Bytes > twiceBytes { // large members are skipped in the first pass in any case
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

// begin records the estimate, and lets the caller decide whether to walk, and whether to
// continue. An error of Options.Begin ends the import before anything costly.
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
