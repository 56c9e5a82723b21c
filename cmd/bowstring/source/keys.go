package source

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// keyList is a list of objects in ascending order of their keys. A bucket may have tens
// of millions of objects, so the list is compressed: each key is stored as what it does
// not share with the key before it, and modification times are dropped.
//
// One goroutine adds. After seal, any number of goroutines may read.
type keyList struct {
	blocks []keyBlock
	n      int64
	last   string // the key that was added last
	// open is the data of the last block, until seal.
	open []byte
}

// keyBlock is a run of objects. A block can be decoded on its own.
type keyBlock struct {
	first string // key
	n     int
	data  []byte
}

// blockKeys is the number of objects in a block. A lookup decodes half a block on
// average; larger blocks would share more.
const blockKeys = 32

// How an object's version and class are stored: one byte of these flags, then the
// announced values in this order.
const (
	hasETag = 1 << iota // as text
	hasMD5              // an ETag of 32 lower-case hexadecimal digits, in 16 bytes
	hasID
	hasClass
)

// add appends an object. A key that is not greater than the last one is an error that
// wraps schema.ErrNotSupported: lookups rely on the order.
func (l *keyList) add(o object.Info) error {
	if l.n > 0 && o.Key <= l.last {
		return fmt.Errorf("%w: the list of the bucket has %s behind %s: it is not in order", schema.ErrNotSupported,
			Quoted(o.Key), Quoted(l.last))
	}
	if len(l.blocks) == 0 || l.blocks[len(l.blocks)-1].n == blockKeys {
		l.seal()
		l.blocks = append(l.blocks, keyBlock{first: strings.Clone(o.Key)})
		l.last = ""
	}
	b := &l.blocks[len(l.blocks)-1]
	// Keys of one folder share most of their bytes.
	shared := 0
	for shared < min(len(l.last), len(o.Key)) && l.last[shared] == o.Key[shared] {
		shared++
	}
	// The first key of a block is in first, for the binary search.
	if b.n == 0 {
		shared = len(o.Key)
	}
	to := binary.AppendUvarint(l.open, uint64(shared))
	to = appendText(to, o.Key[shared:])
	to = binary.AppendUvarint(to, uint64(o.Size))
	flags, sum := byte(0), []byte(nil)
	if s, err := hex.DecodeString(o.Version.ETag); err == nil && len(s) == 16 && hex.EncodeToString(s) == o.Version.ETag {
		flags, sum = hasMD5, s
	} else if o.Version.ETag != "" {
		flags = hasETag
	}
	if o.Version.ID != "" {
		flags |= hasID
	}
	if o.Class != "" {
		flags |= hasClass
	}
	to = append(append(to, flags), sum...)
	if flags&hasETag != 0 {
		to = appendText(to, o.Version.ETag)
	}
	if flags&hasID != 0 {
		to = appendText(to, o.Version.ID)
	}
	if flags&hasClass != 0 {
		to = appendText(to, o.Class)
	}
	l.open, l.last = to, o.Key
	b.n++
	l.n++
	return nil
}

// seal ends the last block. The list must not be read before.
func (l *keyList) seal() {
	if len(l.blocks) > 0 && len(l.open) > 0 {
		l.blocks[len(l.blocks)-1].data = bytes.Clone(l.open)
		l.open = l.open[:0]
	}
}

// appendText appends a string with its length.
func appendText(to []byte, s string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(s))), s...)
}

// all yields the objects of a block. It returns false if yield did.
func (b *keyBlock) all(yield func(object.Info) bool) bool {
	data, key := b.data, b.first
	number := func() int {
		v, n := binary.Uvarint(data)
		data = data[n:]
		return int(v)
	}
	text := func() string {
		n := number()
		s := string(data[:n])
		data = data[n:]
		return s
	}
	for range b.n {
		shared := number()
		key = key[:shared] + text()
		o := object.Info{Key: key, Size: int64(number())}
		flags := data[0]
		data = data[1:]
		if flags&hasMD5 != 0 {
			o.Version.ETag = hex.EncodeToString(data[:16])
			data = data[16:]
		}
		if flags&hasETag != 0 {
			o.Version.ETag = text()
		}
		if flags&hasID != 0 {
			o.Version.ID = text()
		}
		if flags&hasClass != 0 {
			o.Class = text()
		}
		if !yield(o) {
			return false
		}
	}
	return true
}

// from yields the objects with keys >= key.
func (l *keyList) from(key string) iter.Seq[object.Info] {
	return func(yield func(object.Info) bool) {
		i := sort.Search(len(l.blocks), func(i int) bool { return l.blocks[i].first > key })
		for i = max(i-1, 0); i < len(l.blocks); i++ {
			if !l.blocks[i].all(func(o object.Info) bool { return o.Key < key || yield(o) }) {
				return
			}
		}
	}
}

// find returns the object with a key.
func (l *keyList) find(key string) (object.Info, bool) {
	for o := range l.from(key) {
		return o, o.Key == key
	}
	return object.Info{}, false
}

// keyTree is a list of keys as a file system. A folder is what keys have before a slash.
// Names are keys.
type keyTree struct{ keys *keyList }

// isPath reports whether a key is a path: no part of it is empty, "." or "..".
func isPath(key string) bool {
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}

// Open implements fs.FS for the functions that only list. It always fails.
func (t keyTree) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
}

// Stat implements fs.StatFS.
func (t keyTree) Stat(name string) (fs.FileInfo, error) {
	if name == "." {
		return keyInfo{name: ".", dir: true}, nil
	}
	if o, ok := t.keys.find(name); ok {
		return keyInfo{name: path.Base(name), object: o}, nil
	}
	for o := range t.keys.from(name + "/") {
		if strings.HasPrefix(o.Key, name+"/") {
			return keyInfo{name: path.Base(name), dir: true}, nil
		}
		break
	}
	return nil, &fs.PathError{Op: "stat", Path: name, Err: syscall.ENOENT}
}

// ReadDir implements fs.ReadDirFS. It jumps from folder to folder by a search, instead of
// reading all keys below them.
func (t keyTree) ReadDir(name string) ([]fs.DirEntry, error) {
	under := name + "/"
	if name == "." {
		under = ""
	}
	var found []fs.DirEntry
	for at, more := under, true; more; {
		more = false
		for o := range t.keys.from(at) {
			rest, ok := strings.CutPrefix(o.Key, under)
			if !ok {
				break
			}
			// An object a hides the folder a/, as no file system can have both.
			folder, _, isDir := strings.Cut(rest, "/")
			if _, object := t.keys.find(under + folder); !isDir || !object {
				found = append(found, keyEntry{tree: t, key: under + folder, dir: isDir})
			}
			if isDir {
				at, more = under+folder+"0", true // "0" follows "/" in ASCII
				break
			}
		}
	}
	if len(found) == 0 && under != "" {
		if _, err := t.Stat(name); err != nil {
			return nil, err
		}
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errNoFolder}
	}
	// Entries are sorted as a file system sorts them: a folder "a" comes before a file
	// "a.txt", although the key "a.txt" comes before "a/b".
	slices.SortFunc(found, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return found, nil
}

// keyEntry is an entry of a folder.
type keyEntry struct {
	tree keyTree
	key  string
	dir  bool
}

// Name implements fs.DirEntry.
func (e keyEntry) Name() string { return path.Base(e.key) }

// IsDir implements fs.DirEntry.
func (e keyEntry) IsDir() bool { return e.dir }

// Type implements fs.DirEntry.
func (e keyEntry) Type() fs.FileMode {
	if e.dir {
		return fs.ModeDir
	}
	return 0
}

// Info implements fs.DirEntry.
func (e keyEntry) Info() (fs.FileInfo, error) {
	if e.dir {
		return keyInfo{name: e.Name(), dir: true}, nil
	}
	return e.tree.Stat(e.key)
}

// keyInfo describes an object or a folder of keys.
type keyInfo struct {
	name   string
	dir    bool
	object object.Info
}

// Name implements fs.FileInfo.
func (i keyInfo) Name() string { return i.name }

// Size implements fs.FileInfo.
func (i keyInfo) Size() int64 { return i.object.Size }

// Mode implements fs.FileInfo.
func (i keyInfo) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o555
	}
	return 0o444
}

// ModTime implements fs.FileInfo. Times are not stored.
func (i keyInfo) ModTime() time.Time { return time.Time{} }

// IsDir implements fs.FileInfo.
func (i keyInfo) IsDir() bool { return i.dir }

// Sys implements fs.FileInfo.
func (i keyInfo) Sys() any { return i.object }

// join appends another list, all of whose keys follow those of this one. Both are sealed.
func (l *keyList) join(other *keyList) {
	if other.n == 0 {
		return
	}
	l.blocks = append(l.blocks, other.blocks...)
	l.n += other.n
	l.last, l.open = other.last, nil
}
