package source

import (
	"bufio"
	"bytes"
	"container/heap"
	"context"
	"crypto/md5" //nolint:gosec // it is what inventories have
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/cmd/bowstring/source/parquet"
	"bowstring/fetch/object"
	"bowstring/schema"
)

// inventory is a list of a bucket's objects from another program: an inventory of S3, a
// manifest of the Multi-Storage Client, or a file of keys. It is read instead of listing
// the bucket, which for a hundred million objects takes long and costs money. If an
// object has changed since, reading it fails, because reads name the version.
type inventory struct {
	place *Files
	at    string // path of the inventory in place
	notes []string
}

// openInventory finds the file of an inventory, which may be in another bucket or on
// disk.
func openInventory(ctx context.Context, named string, opts Options) (*inventory, error) {
	// The inventory itself is found by listing, or by its path alone.
	opts.Inventory = ""
	// A local file may be named by a URL as well. It is not a bucket: a list of keys is
	// one file.
	if strings.HasPrefix(named, "file:") {
		u, err := url.Parse(named)
		if err != nil {
			return nil, fmt.Errorf("%w: inventory %s: %w", schema.ErrInvalid, Quoted(named), err)
		}
		named = u.Path
	}
	place, at, err := openFiles(ctx, named, opts)
	if err != nil {
		return nil, fmt.Errorf("inventory %s: %w", Quoted(named), err)
	}
	return &inventory{place: place, at: at}, nil
}

// list returns the objects that begin with a prefix, in ascending order of their keys. of
// is the listed bucket.
func (v *inventory) list(ctx context.Context, of *cloud, prefix string) (keyList, error) {
	r := inventoryReader{inventory: v, of: of, prefix: prefix, sort: &keySorter{}}
	err := r.read(ctx)
	var keys keyList
	if err == nil {
		// The order of the keys is certain only after all files were read.
		keys, err = r.sort.sorted()
	}
	// An object whose version is not known could change between two reads of one blob.
	if err == nil && r.bare > 0 {
		keys, err = r.ask(ctx, keys)
	}
	if err != nil {
		return keyList{}, fmt.Errorf("inventory %s: %w", Quoted(v.place.shown(v.at)), err)
	}
	return keys, nil
}

// inventoryReader reads an inventory once. One goroutine uses it.
type inventoryReader struct {
	*inventory

	of     *cloud
	prefix string
	// relative is the prefix that keys in the inventory lack; "" if they are keys of the
	// bucket.
	relative string
	// sort orders the keys: S3 promises no order across the files of an inventory.
	sort *keySorter
	// bare counts objects without a stated version.
	bare int64
}

// s3Manifest is manifest.json of an S3 inventory. Its CSV files have no line of names;
// FileSchema has them.
type s3Manifest struct {
	SourceBucket      string `json:"sourceBucket"`
	CreationTimestamp string `json:"creationTimestamp"` // milliseconds since 1970
	FileFormat        string `json:"fileFormat"`
	FileSchema        string `json:"fileSchema"`
	Files             []struct {
		Key  string `json:"key"`
		Size int64  `json:"size"`
		MD5  string `json:"MD5checksum"`
	} `json:"files"`
	// Parts are those of a manifest of the Multi-Storage Client, which is JSON as well.
	Parts []struct {
		Path string `json:"path"`
	} `json:"parts"`
}

// read reads the file, or as a manifest the files that it names.
func (r *inventoryReader) read(ctx context.Context) error {
	// Only manifests end in .json. Lists of keys in JSON have one object a line, and end
	// in .jsonl.
	if extension(r.at) != "json" {
		return r.rows(ctx, r.at, nil, "")
	}
	data, err := r.place.readWhole(ctx, r.at, maxIndex)
	if err != nil {
		return unfound(err)
	}
	var m s3Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
	}
	switch {
	case m.FileFormat != "" && len(m.Files) > 0:
		return r.s3(ctx, &m)
	case len(m.Parts) > 0:
		return r.msc(ctx, &m)
	}
	return fmt.Errorf("%w: it is neither manifest.json of an inventory of S3 (files, fileFormat) nor an index of the "+
		"Multi-Storage Client (parts); a list of keys is a text, .csv, .jsonl or .parquet", schema.ErrInvalid)
}

// s3 reads an S3 inventory. Its files must have the size and the checksum that the
// manifest states: a damaged list would silently drop samples.
func (r *inventoryReader) s3(ctx context.Context, m *s3Manifest) error {
	// An inventory of another bucket would name keys that do not exist here, or other
	// objects.
	where, _, _ := strings.Cut(r.of.from.URL(), "?")
	if name, ok := strings.CutPrefix(where, "s3://"); !ok || name != m.SourceBucket {
		return fmt.Errorf("%w: it lists bucket %s, and %s is attached", schema.ErrInvalid, Quoted(m.SourceBucket), where)
	}
	var columns []string
	switch m.FileFormat {
	case "CSV":
		for name := range strings.SplitSeq(m.FileSchema, ",") {
			columns = append(columns, columnName(name))
		}
	// The schema is a Parquet message type; only the names of the fields matter here.
	case "Parquet":
		for _, name := range []string{"key", "size", "e_tag"} {
			if strings.Contains(m.FileSchema, name) {
				columns = append(columns, columnName(name))
			}
		}
	default:
		return fmt.Errorf("%w: the format of its files is %.20q; configure the inventory for CSV or Parquet", schema.ErrNotSupported,
			m.FileFormat)
	}
	for _, need := range []string{"key", "size", "etag"} {
		if !slices.Contains(columns, need) {
			return fmt.Errorf("%w: it has no field %s; configure the inventory with size and ETag", schema.ErrInvalid, need)
		}
	}
	if m.FileFormat == "Parquet" {
		columns = nil // the files have them
	}
	// The inventory is made daily or weekly, so the user must know how old it is.
	made := "an unknown time"
	if ms, err := strconv.ParseInt(m.CreationTimestamp, 10, 64); err == nil {
		made = time.UnixMilli(ms).UTC().Format("2006-01-02 15:04 MST")
	}
	r.notes = append(r.notes, fmt.Sprintf("objects are those of the inventory of %s: what came since is not among them", made))
	for _, f := range m.Files {
		// Keys of the files are relative to the bucket that holds the inventory, not to
		// the manifest.
		at := r.siblingKey(f.Key)
		size, err := r.place.sizeOf(ctx, at)
		if err != nil {
			return unfound(err)
		}
		if size != f.Size {
			return fmt.Errorf("%w: its file %s has %d bytes, and the manifest says %d", schema.ErrDataLoss,
				Quoted(r.place.shown(at)), size, f.Size)
		}
		if err := r.rows(ctx, at, columns, f.MD5); err != nil {
			return fmt.Errorf("its file %s: %w", Quoted(r.place.shown(at)), err)
		}
	}
	return nil
}

// msc reads a manifest of the Multi-Storage Client. Its keys are relative to the attached
// folder.
func (r *inventoryReader) msc(ctx context.Context, m *s3Manifest) error {
	r.relative = r.of.folder
	for _, part := range m.Parts {
		// A manifest comes with the data, so its paths must not lead out of its folder.
		if !filepath.IsLocal(part.Path) {
			return fmt.Errorf("%w: part %s leads elsewhere", schema.ErrInvalid, Quoted(part.Path))
		}
		at := filepath.Join(filepath.Dir(r.at), filepath.FromSlash(part.Path))
		if err := r.rows(ctx, at, nil, ""); err != nil {
			return fmt.Errorf("its part %s: %w", Quoted(part.Path), err)
		}
	}
	return nil
}

// siblingKey returns the path of a file of the inventory by its key: in the bucket of the
// manifest, or in a local copy of that bucket, whose root may be any folder above.
func (v *inventory) siblingKey(key string) string {
	if v.place.bucket() != nil {
		return cloudRoot + "/" + key
	}
	dir := filepath.Dir(v.at)
	for d := dir; ; d = filepath.Dir(d) {
		at := filepath.Join(d, filepath.FromSlash(key))
		if _, err := v.place.stat(at); err == nil {
			return at
		}
		if d == filepath.Dir(d) {
			// If the copy has another structure, the file may be next to the manifest.
			return filepath.Join(dir, path.Base(key))
		}
	}
}

// unfound turns the error of a missing file into one that wraps schema.ErrNotFound.
func unfound(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errFolder) {
		return notFound(err)
	}
	return err
}

// sizeOf returns the size of a file, which need not be listed.
func (f *Files) sizeOf(ctx context.Context, at string) (size int64, err error) {
	in, err := f.openParts(ctx, at, windowBytes)
	if err != nil {
		return 0, err
	}
	return in.Size(), in.Close()
}

// columnName returns the common form of a column's name. Programs write e_tag, ETag and
// etag.
func columnName(name string) string {
	name = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(name)), "_", "")
	if name == "sizebytes" {
		return "size"
	}
	return name
}

// inventoryRow is a row of an inventory.
type inventoryRow struct {
	key, etag, class string
	size             int64 // -1 if it is not stated
	left             bool  // left out: an older version, or a mark that the object was deleted
}

// set sets the value of a column, given as text. Unknown columns are ignored.
func (row *inventoryRow) set(column, text string) (err error) {
	switch column {
	case "key":
		row.key = text
	case "etag":
		row.etag = strings.Trim(text, `"`)
	case "size":
		if text != "" {
			row.size, err = strconv.ParseInt(text, 10, 64)
		}
	// The standard class is what listings omit.
	case "storageclass":
		if row.class = text; text == "STANDARD" {
			row.class = ""
		}
	case "islatest":
		row.left = row.left || text == "false"
	case "isdeletemarker":
		row.left = row.left || text == "true"
	}
	return err
}

// put adds a row, unless it is outside the prefix or no file.
func (r *inventoryReader) put(row inventoryRow) error {
	if row.left {
		return nil
	}
	o := object.Info{Key: row.key, Size: max(row.size, 0), Class: row.class}
	if !strings.HasPrefix(o.Key, r.prefix) || !r.of.odd.isFile(o) {
		return nil
	}
	// Other clouds have more in a version than an ETag, so the object must be looked up.
	if row.etag != "" && row.size >= 0 && strings.HasPrefix(r.of.from.URL(), "s3:") {
		o.Version.ETag = row.etag
	} else {
		r.bare++
	}
	return r.sort.add(o)
}

// keyOf returns the key for an entry of a list, which may be a key or a URL. A URL of
// another bucket is an error.
func (r *inventoryReader) keyOf(text string) (string, error) {
	if !object.IsURL(text) {
		return r.relative + text, nil
	}
	where, key, err := object.SplitURL(text)
	if err != nil {
		return "", err
	}
	where, _, _ = strings.Cut(where, "?")
	if own, _, _ := strings.Cut(r.of.from.URL(), "?"); where == own {
		return key, nil
	}
	if p, ok := r.of.named(text); ok { // the bucket may be a directory that is a part of the URL
		if key, here := r.of.key(p); here {
			return key, nil
		}
	}
	return "", fmt.Errorf("%w: %s is in another bucket", schema.ErrInvalid, Quoted(text))
}

// rows reads a file of rows. columns are those of a CSV without a line of names; nil if
// the file names them. sum is the MD5 of the file; "" if it is not known.
func (r *inventoryReader) rows(ctx context.Context, at string, columns []string, sum string) (err error) {
	f, err := r.place.open(ctx, at)
	if err != nil {
		return unfound(err)
	}
	// The format is that of the name without the compression, which the first bytes show.
	name := strings.TrimSuffix(strings.TrimSuffix(at, ".gz"), ".zst")
	if extension(name) == "parquet" {
		return r.parquet(ctx, f)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	hash := md5.New() //nolint:gosec // it is what the inventory has
	raw := bufio.NewReaderSize(io.TeeReader(f, hash), 64<<10)
	in := io.Reader(raw)
	if algorithm := compressionOf(raw); algorithm != "" {
		packed, stop, err := decompress(raw, algorithm)
		if err != nil {
			return err
		}
		defer stop()
		in = packed
	}
	switch {
	case columns != nil || extension(name) == "csv":
		err = r.csv(ctx, in, columns)
	default:
		err = r.lines(ctx, in, extension(name) == "jsonl")
	}
	if err != nil {
		return err
	}
	// The hash must cover the whole file, also what a decoder has not read.
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); sum != "" && !strings.EqualFold(got, sum) {
		return fmt.Errorf("%w: it has the MD5 %s, and the manifest says %s", schema.ErrDataLoss, got, sum)
	}
	return nil
}

// csv reads rows of CSV. Keys in an S3 inventory are URL-encoded; keys in other lists are
// not.
func (r *inventoryReader) csv(ctx context.Context, in io.Reader, columns []string) error {
	rows := csv.NewReader(in)
	rows.ReuseRecord = true
	encoded := columns != nil // S3 encodes keys as in URLs
	for ctx.Err() == nil {
		values, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
		}
		line, _ := rows.FieldPos(0)
		// The first line names the columns, in any order.
		if columns == nil {
			for _, name := range values {
				columns = append(columns, columnName(name))
			}
			if !slices.Contains(columns, "key") {
				return fmt.Errorf("%w: its first line names no column key", schema.ErrInvalid)
			}
			continue
		}
		if len(values) != len(columns) {
			return fmt.Errorf("%w: line %d has %d fields, want %d", schema.ErrInvalid, line, len(values), len(columns))
		}
		row := inventoryRow{size: -1}
		for i, text := range values {
			if columns[i] == "key" && encoded {
				if text, err = url.QueryUnescape(text); err != nil {
					return fmt.Errorf("%w: line %d: %w", schema.ErrInvalid, line, err)
				}
			}
			if err := row.set(columns[i], text); err != nil {
				return fmt.Errorf("%w: line %d: %w", schema.ErrInvalid, line, err)
			}
		}
		if err := r.put(row); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
	return context.Cause(ctx)
}

// maxKeyLine bounds a line in bytes. A key has at most 1 KiB in S3; a binary file has no
// lines.
const maxKeyLine = 1 << 20

// lines reads one key, or one JSON object, a line.
func (r *inventoryReader) lines(ctx context.Context, in io.Reader, asJSON bool) error {
	lines := bufio.NewScanner(in)
	// The default bound of 64 KiB is too small for a line of JSON with other fields.
	lines.Buffer(make([]byte, 64<<10), maxKeyLine)
	for n := 1; lines.Scan() && ctx.Err() == nil; n++ {
		line := bytes.TrimSuffix(lines.Bytes(), []byte("\r"))
		row := inventoryRow{size: -1}
		switch {
		case len(line) == 0:
			continue
		case asJSON:
			var said struct {
				Key       string `json:"key"`
				Size      *int64 `json:"size"`
				SizeBytes *int64 `json:"size_bytes"`
				ETag      string `json:"etag"`
			}
			err := json.Unmarshal(line, &said)
			if err == nil && said.Key == "" {
				err = errors.New("it names none")
			}
			if err != nil {
				return fmt.Errorf("%w: line %d is no object with a key: %w", schema.ErrInvalid, n, err)
			}
			row.key, row.etag = said.Key, strings.Trim(said.ETag, `"`)
			for _, size := range []*int64{said.Size, said.SizeBytes} {
				if size != nil {
					row.size = *size
				}
			}
		default:
			row.key = string(line)
		}
		key, err := r.keyOf(row.key)
		if row.key = key; err == nil {
			err = r.put(row)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// parquet reads rows of Parquet. It takes over in.
func (r *inventoryReader) parquet(ctx context.Context, in *File) (err error) {
	f, err := parquet.Open(in)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// No column has INT96 timestamps that are read, so none is wanted here.
	columns, err := f.Columns(func(string) bool { return false })
	if err != nil {
		return err
	}
	var names []string
	var at []int
	for i, c := range columns {
		switch name := columnName(c.Name); name {
		case "key", "etag", "size", "storageclass", "islatest", "isdeletemarker":
			names, at = append(names, name), append(at, i)
		}
	}
	if !slices.Contains(names, "key") {
		return fmt.Errorf("%w: it has no column key", schema.ErrInvalid)
	}
	const rowsAtOnce = 4096
	records, err := f.Records(at, make([]bool, len(at)), rowsAtOnce)
	if err != nil {
		return err
	}
	for {
		rec, err := records.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = r.record(rec, names)
			rec.Release()
		}
		if err != nil {
			return err
		}
	}
}

// record puts the rows of a record.
func (r *inventoryReader) record(rec arrow.Record, names []string) error {
	for i := range int(rec.NumRows()) {
		row := inventoryRow{size: -1}
		for c, name := range names {
			column := rec.Column(c)
			if column.IsNull(i) {
				continue
			}
			value := column.ValueStr(i)
			if raw, ok := column.(bytesArray); ok {
				value = string(raw.Value(i))
			}
			if err := row.set(name, value); err != nil {
				return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
			}
		}
		row.key = r.relative + row.key
		if err := r.put(row); err != nil {
			return err
		}
	}
	return nil
}

// ask looks up the objects without a stated version, in batches, and leaves out those
// that do not exist.
func (r *inventoryReader) ask(ctx context.Context, said keyList) (keys keyList, err error) {
	var missing, other int64
	var aMissing, anOther string
	add := func(part []object.Info) error {
		var bare []string
		// Objects with a version stay as they are, and cost no request.
		for _, o := range part {
			if o.Version == (schema.ObjectVersion{}) {
				bare = append(bare, o.Key)
			}
		}
		found, err := r.of.statAll(ctx, bare)
		if err != nil {
			return err
		}
		for _, o := range part {
			if o.Version == (schema.ObjectVersion{}) {
				is := found[0]
				found = found[1:]
				switch {
				case is.Key == "":
					missing++
					aMissing = o.Key
					continue
				case o.Size > 0 && is.Size != o.Size:
					other++
					anOther = o.Key
				}
				o = is
				// A listing of S3 has no version ids. Attached data must name versions as
				// a listing would, so that unchanged objects stay the same.
				if o.Version.ETag != "" && strings.HasPrefix(r.of.from.URL(), "s3:") {
					o.Version.ID = ""
				}
			}
			if err := keys.add(o); err != nil {
				return err
			}
		}
		return nil
	}
	// A batch bounds the memory of the results, and keeps the order of the keys.
	const atOnce = 4096
	var part []object.Info
	for o := range said.from("") {
		if part = append(part, o); len(part) == atOnce {
			if err := add(part); err != nil {
				return keyList{}, err
			}
			part = part[:0]
		}
	}
	if err := add(part); err != nil {
		return keyList{}, err
	}
	keys.seal()
	if missing > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%d objects of the inventory are not in the bucket, such as %s", missing,
			Quoted(aMissing)))
	}
	if other > 0 {
		r.notes = append(r.notes, fmt.Sprintf("%d objects have other sizes than the inventory says, such as %s: it is older than "+
			"they are", other, Quoted(anOther)))
	}
	return keys, nil
}

// keySorter sorts objects by key. It keeps them as sorted runs of compressed lists, and
// merges these at the end. Sorting all in one slice would take several times the memory.
type keySorter struct {
	open []object.Info
	runs []keyList
}

// sortedRun is the number of objects in a run.
const sortedRun = 1 << 17

// add adds an object.
func (s *keySorter) add(o object.Info) error {
	if s.open = append(s.open, o); len(s.open) < sortedRun {
		return nil
	}
	return s.end()
}

// end makes a run of the open objects. An object that is listed twice is kept once.
func (s *keySorter) end() error {
	// A stable sort keeps equal keys together in the order of the list.
	slices.SortStableFunc(s.open, func(a, b object.Info) int { return strings.Compare(a.Key, b.Key) })
	var run keyList
	for i, o := range s.open {
		if i > 0 && o.Key == s.open[i-1].Key {
			if err := same(s.open[i-1], o); err != nil {
				return err
			}
			continue
		}
		if err := run.add(o); err != nil {
			return err
		}
	}
	run.seal()
	s.runs, s.open = append(s.runs, run), s.open[:0]
	return nil
}

// same returns an error if one key is listed as two different objects.
func same(a, b object.Info) error {
	if a.Size == b.Size && a.Version == b.Version {
		return nil
	}
	return fmt.Errorf("%w: it has %s twice: of %d bytes and version %s, and of %d bytes and version %s", schema.ErrInvalid,
		Quoted(a.Key), a.Size, Quoted(a.Version.ETag), b.Size, Quoted(b.Version.ETag))
}

// sorted merges the runs and returns all objects in order. The sorter is empty
// afterwards.
func (s *keySorter) sorted() (all keyList, err error) {
	if err := s.end(); err != nil {
		return keyList{}, err
	}
	s.open = nil
	// A list of up to sortedRun objects needs no merge.
	if len(s.runs) == 1 {
		return s.runs[0], nil
	}
	var heads keyHeads
	defer func() {
		for _, h := range heads {
			h.stop()
		}
	}()
	for i := range s.runs {
		next, stop := iter.Pull(s.runs[i].from(""))
		h := &keyHead{next: next, stop: stop}
		heads = append(heads, h) // the deferred function stops it
		if !h.advance() {
			heads = heads[:len(heads)-1]
			stop()
		}
	}
	heap.Init(&heads)
	var last object.Info
	for len(heads) > 0 {
		h := heads[0]
		if all.n > 0 && h.at.Key == last.Key {
			err = same(last, h.at)
		} else {
			err = all.add(h.at)
			last = h.at
		}
		if err != nil {
			return keyList{}, err
		}
		if h.advance() {
			heap.Fix(&heads, 0)
		} else {
			h.stop()
			heap.Pop(&heads)
		}
	}
	all.seal()
	return all, nil
}

// keyHead is a run that is being merged, and its next object.
type keyHead struct {
	at   object.Info
	next func() (object.Info, bool)
	stop func()
}

// advance goes to the next object; false at the end.
func (h *keyHead) advance() (ok bool) {
	h.at, ok = h.next()
	return ok
}

// keyHeads is a heap of runs by their next key.
type keyHeads []*keyHead

// Len implements heap.Interface.
func (h keyHeads) Len() int { return len(h) }

// Less implements heap.Interface.
func (h keyHeads) Less(i, j int) bool { return h[i].at.Key < h[j].at.Key }

// Swap implements heap.Interface.
func (h keyHeads) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *keyHeads) Push(x any) { *h = append(*h, x.(*keyHead)) }

// Pop implements heap.Interface.
func (h *keyHeads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
