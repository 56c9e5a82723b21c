package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// cloudRoot is the path of a bucket's root. A path that leads out of the bucket, by "..",
// does not begin with it.
const cloudRoot = "/-"

// cloud is the file system of a folder in a bucket. Its paths are cloudRoot, a slash and
// a key. It lists the folder once, when the data set is opened. After that it only reads,
// and the list answers everything else: a stat in a bucket would be a request each.
//
// One goroutine opens the data set. Afterwards cloud does not change, except gone and
// twice, and any goroutine may read.
type cloud struct {
	// folder is the prefix of the folder's keys: "", or a text that ends in a slash.
	from   object.Bucket
	folder string

	keys keyList
	// listed means that keys has all objects of the folder. Before that, keys may have
	// single ones.
	listed bool
	// inventory is a list that another program made, used instead of listing; nil for
	// none.
	inventory *inventory
	// odd counts the objects that were left out because their keys are no paths.
	odd oddKeys

	// gone is the error after which the bucket counts as unreachable.
	gone atomic.Pointer[error]
	// twice keeps data for a second pass; nil if nothing is read twice.
	twice *twice
}

// attempts is how often a request is made if the server is unavailable.
const attempts = 8

// atTheSameTime is how many requests for small things are in flight at once. They wait
// for latency, not for bandwidth.
const atTheSameTime = 64

// Attempt makes a read request with exponential backoff, until it succeeds, fails for
// good, or has failed attempts times. It retries only errors that wrap
// schema.ErrUnavailable and throttling, and waits as long as the server asks for.
func Attempt(ctx context.Context, request func() error) error {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 100*time.Millisecond, 10*time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := request()
		var slower *object.ThrottledError
		switch {
		case err == nil || errors.As(err, &slower) && slower.After == 0:
		case errors.As(err, &slower):
			err = errors.Join(err, &backoff.RetryAfterError{Duration: slower.After})
		case !errors.Is(err, schema.ErrUnavailable):
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(b), backoff.WithMaxTries(attempts))
	return err
}

// openCloud opens the bucket of a URL. It returns the bucket's files and the path of the
// data set in them.
func openCloud(ctx context.Context, raw string, opts Options) (*Files, string, error) {
	where, key, err := splitCloud(raw)
	if err != nil {
		return nil, "", err
	}
	open := opts.Bucket
	if open == nil {
		open = func(ctx context.Context, url string) (object.Bucket, error) {
			return object.Open(ctx, url, object.Options{})
		}
	}
	b, err := open(ctx, where)
	if err != nil {
		return nil, "", err
	}
	// The inventory may be in another bucket, or a local file.
	c := &cloud{from: b}
	if opts.Inventory != "" {
		if c.inventory, err = openInventory(ctx, opts.Inventory, opts); err != nil {
			return nil, "", err
		}
	}
	if err := c.enter(ctx, key); err != nil {
		return nil, "", err
	}
	// A key that was found is a path. An unknown one keeps its slash, which marks a
	// folder.
	if c.listed || c.keys.n > 0 {
		key = strings.TrimSuffix(key, "/")
	}
	return &Files{system: c, root: cloudRoot}, strings.TrimSuffix(cloudRoot+"/"+key, "/"), nil
}

// splitCloud splits a URL into that of a bucket and a key or prefix. With file: the
// bucket is the deepest existing directory of the path, and the rest is the key.
func splitCloud(raw string) (where, key string, err error) {
	if where, key, err = object.SplitURL(raw); err != nil || !strings.HasPrefix(where, "file:") {
		return where, key, err
	}
	u, err := url.Parse(where)
	if err != nil {
		return "", "", err
	}
	// A file URL does not show which part of it is the bucket.
	dir := u.Path
	for dir != "/" {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			break
		} else if err != nil && !isPattern(dir) {
			return "", "", notFound(err)
		}
		dir, key = filepath.Dir(dir), path.Join(filepath.Base(dir), key)
	}
	return (&url.URL{Scheme: "file", Path: dir}).String(), key, nil
}

// enter finds out what a key names: an object, a folder, or with a pattern the objects of
// a folder.
func (c *cloud) enter(ctx context.Context, key string) error {
	if key != "" && key != "/" && !isPath(strings.TrimSuffix(key, "/")) {
		return fmt.Errorf("%w: %s: the key %s is no path: parts of it are empty, or dots alone", schema.ErrInvalid,
			c.from.URL(), Quoted(key))
	}
	// Only keys with the plain text before the first wildcard are listed.
	if i := strings.IndexAny(key, patternRunes); i >= 0 {
		c.folder = key[:strings.LastIndexByte(key[:i], '/')+1]
		err := c.list(ctx, key[:i])
		if errors.Is(err, schema.ErrNotSupported) { // names that braces expand to are looked up
			return nil
		}
		c.listed = err == nil
		return err
	}
	if key == "" || strings.HasSuffix(key, "/") {
		c.folder = strings.TrimPrefix(key, "/")
		return nil
	}
	var o object.Info
	err := Attempt(ctx, func() (err error) {
		o, err = c.from.Stat(ctx, key)
		return err
	})
	switch {
	case err == nil:
		c.folder = key[:strings.LastIndexByte(key, '/')+1]
		if err := c.keys.add(o); err != nil {
			return err
		}
		c.keys.seal()
	case errors.Is(err, schema.ErrNotFound), errors.Is(err, schema.ErrDenied): // a caller may be allowed to list and not to read
		c.folder = key + "/"
	default:
		return err
	}
	return nil
}

// list lists all objects that begin with a prefix, once. It uses the inventory if there
// is one. Large buckets are listed in ranges in parallel, if the server supports that.
func (c *cloud) list(ctx context.Context, prefix string) (err error) {
	if c.inventory != nil {
		c.keys, err = c.inventory.list(ctx, c, prefix)
		return err
	}
	if url := c.from.URL(); strings.HasPrefix(url, "s3:") || strings.HasPrefix(url, "gs:") {
		c.keys, c.odd, err = listRanges(ctx, c.from, prefix)
		return err
	}
	c.keys = keyList{}
	after := ""
	err = listWhole(ctx, &c.keys, func() error { return c.listOn(ctx, prefix, &after) })
	c.keys.seal()
	return err
}

// listWhole calls listOn until a list is complete. listOn continues where the last call
// stopped, and adds to keys. If the server is unavailable, listWhole retries, and fails
// after attempts calls in a row without a new key: a long list may have many
// interruptions.
func listWhole(ctx context.Context, keys *keyList, listOn func() error) error {
	for tries := 0; ; tries++ {
		n := keys.n
		err := listOn()
		if err == nil || !errors.Is(err, schema.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		if keys.n > n {
			tries = 0
		}
		if tries == attempts {
			return err
		}
		if err := sleep(ctx, min(100*time.Millisecond<<tries, 10*time.Second)); err != nil {
			return err
		}
	}
}

// listOn continues a list after the key *after, and advances it with each object.
func (c *cloud) listOn(ctx context.Context, prefix string, after *string) error {
	for o, err := range c.from.List(ctx, object.ListOptions{Prefix: prefix, After: *after}) {
		if err != nil {
			return err
		}
		*after = o.Key
		if !c.odd.isFile(o) {
			continue
		}
		if err := c.keys.add(o); err != nil {
			return err
		}
	}
	return nil
}

// oddKeys counts objects whose keys are no paths, such as a//b or a/../b. No folder
// contains them.
type oddKeys struct {
	n   int64
	key string // an example
}

// isFile reports whether an object is a file: its key is a path, and it is no marker of a
// folder.
func (k *oddKeys) isFile(o object.Info) bool {
	switch {
	case strings.HasSuffix(o.Key, "/") && o.Size == 0: // a marker of a folder
		return false
	case !isPath(o.Key):
		k.n++
		k.key = o.Key
		return false
	}
	return true
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// know implements system. If the folder has not been listed, it lists it. If the bucket
// cannot be listed, it looks up the paths one by one. Paths outside the folder are always
// looked up.
func (c *cloud) know(ctx context.Context, paths []string) error {
	if !c.listed {
		// A failed listing leaves an empty list, so the earlier one is restored.
		had := c.keys
		err := c.list(ctx, c.folder)
		if errors.Is(err, schema.ErrNotSupported) && paths != nil {
			c.keys = had
			return c.ask(ctx, paths)
		}
		if err != nil {
			return err
		}
		c.listed = true
		if c.keys.n == 0 {
			return c.nothing()
		}
	}
	return c.ask(ctx, slices.DeleteFunc(slices.Clone(paths), func(p string) bool {
		key, ok := c.key(p)
		return ok && strings.HasPrefix(key, c.folder)
	}))
}

// nothing is the error for a folder without objects.
func (c *cloud) nothing() error {
	return notFound(fmt.Errorf("there is nothing in %s", c.shown(c.path(c.folder))))
}

// ask looks up those of the paths that are not known yet, and merges the objects found
// into the list. Both are sorted.
func (c *cloud) ask(ctx context.Context, paths []string) error {
	var keys []string
	for _, p := range paths {
		key, ok := c.key(p)
		if _, known := c.keys.find(key); ok && !known && isPath(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	found, err := c.statAll(ctx, keys)
	if err != nil || len(keys) == 0 {
		return err
	}
	var both keyList
	next := 0
	add := func(o object.Info) error {
		if o.Key == "" {
			return nil
		}
		return both.add(o)
	}
	// keyList only appends, so both lists are merged into a new one.
	for o := range c.keys.from("") {
		for ; next < len(found) && keys[next] < o.Key; next++ {
			if err := add(found[next]); err != nil {
				return err
			}
		}
		if err := both.add(o); err != nil {
			return err
		}
	}
	for ; next < len(found); next++ {
		if err := add(found[next]); err != nil {
			return err
		}
	}
	both.seal()
	c.keys = both
	return nil
}

// statAll looks up objects by their keys, several at once. An object that does not exist
// is the zero Info.
func (c *cloud) statAll(ctx context.Context, keys []string) ([]object.Info, error) {
	found := make([]object.Info, len(keys))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atTheSameTime)
	for i, key := range keys {
		group.Go(func() error {
			err := Attempt(ctx, func() (err error) {
				found[i], err = c.from.Stat(ctx, key)
				return err
			})
			if errors.Is(err, schema.ErrNotFound) {
				found[i] = object.Info{}
				return nil
			}
			return err
		})
	}
	return found, group.Wait()
}

const (
	// glanceKeys is how many of the first keys of a folder are used to recognise its
	// format: four pages.
	glanceKeys = 4000
	// glanceFolders is how many subfolders are sampled, with one page each. Shards of one
	// folder look alike.
	glanceFolders = 16
	// glancePage is the number of keys in a page. Stores return at most 1000, so that one
	// request suffices.
	glancePage = 1000
)

// glance implements system. It lists the first keys, the direct content of the folder,
// and the first keys of its first subfolders. Without a limit, a folder of a hundred
// million keys would take minutes before its format is known.
func (c *cloud) glance(ctx context.Context, depth int) ([]string, error) {
	if c.inventory != nil {
		if err := c.know(ctx, nil); err != nil {
			return nil, err
		}
		// An inventory is read anyway, so it is read whole.
		return c.firstKeys(depth), nil
	}
	// The same key may come from several lists.
	seen := map[string]bool{}
	names, folders, keys := []string{}, []string(nil), 0
	take := func(opts object.ListOptions, most int) error {
		n := 0
		for o, err := range c.from.List(ctx, opts) {
			if err != nil {
				return err
			}
			rel := strings.TrimPrefix(o.Key, c.folder)
			keys++
			if o.Prefix {
				folders = append(folders, o.Key)
			} else if isPath(o.Key) && !seen[rel] && strings.Count(rel, "/") <= depth &&
				!slices.ContainsFunc(strings.Split(rel, "/"), hidden) {
				seen[rel] = true
				names = append(names, rel)
			}
			if n++; n == most {
				return nil
			}
		}
		return nil
	}
	once := func(opts object.ListOptions, most int) error {
		return Attempt(ctx, func() error { return take(opts, most) })
	}
	err := once(object.ListOptions{Prefix: c.folder}, glanceKeys)
	switch {
	case err != nil:
		return nil, err
	case keys == 0:
		return nil, c.nothing()
	case keys < glanceKeys: // the list is complete
		return names, nil
	}
	if err := once(object.ListOptions{Prefix: c.folder, Delimiter: "/"}, glancePage); err != nil {
		return nil, err
	}
	slices.Sort(folders)
	folders = slices.Compact(folders)
	for _, f := range folders[:min(len(folders), glanceFolders)] {
		if err := once(object.ListOptions{Prefix: f}, glancePage); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// firstKeys returns what glance would, from the listed keys.
func (c *cloud) firstKeys(depth int) []string {
	names, folders := []string{}, map[string]int{}
	for o := range c.keys.from(c.folder) {
		rel, ok := strings.CutPrefix(o.Key, c.folder)
		if !ok || len(names) == enough {
			break
		}
		if strings.Count(rel, "/") > depth || slices.ContainsFunc(strings.Split(rel, "/"), hidden) {
			continue
		}
		if dir := path.Dir(rel); folders[dir] < glancePage {
			folders[dir]++
			names = append(names, rel)
		}
	}
	return names
}

// key returns the key of the object at a path, or the prefix of the folder there. ok is
// false for a path outside the bucket.
func (c *cloud) key(p string) (string, bool) {
	p = path.Clean(p)
	if p == cloudRoot {
		return "", true
	}
	return strings.CutPrefix(p, cloudRoot+"/")
}

// path returns the path of a key.
func (c *cloud) path(key string) string { return strings.TrimSuffix(cloudRoot+"/"+key, "/") }

// name returns a path as the name in the key tree, in the form of fs.FS.
func (c *cloud) name(op, p string) (string, error) {
	key, ok := c.key(p)
	switch {
	case !ok:
		return "", &fs.PathError{Op: op, Path: c.shown(p), Err: syscall.ENOENT}
	case key == "":
		return ".", nil
	}
	return key, nil
}

// tree is the list as a fs.FS.
func (c *cloud) tree() keyTree { return keyTree{&c.keys} }

// absolute implements system: all paths in a bucket are absolute.
func (c *cloud) absolute(p string) string { return p }

// shown implements system: the URL without its parameters, which may hold credentials.
func (c *cloud) shown(p string) string {
	key, ok := c.key(p)
	if !ok {
		return p
	}
	where, _, _ := strings.Cut(c.from.URL(), "?")
	return strings.TrimSuffix(where+"/"+key, "/")
}

// stat implements system, from the list and without a request.
func (c *cloud) stat(p string) (fs.FileInfo, error) {
	name, err := c.name("stat", p)
	if err != nil {
		return nil, err
	}
	if c.path(c.folder) == path.Clean(p) && !c.listed { // taken to exist until it is listed
		return keyInfo{name: path.Base(p), dir: true}, nil
	}
	return c.tree().Stat(name)
}

// Buckets have no links, so lstat is stat.

func (c *cloud) lstat(p string) (fs.FileInfo, error) { return c.stat(p) }

// resolve implements system.
func (c *cloud) resolve(p string) (string, error) {
	if _, err := c.stat(p); err != nil {
		return "", err
	}
	return path.Clean(p), nil
}

// walk implements system, over the list.
func (c *cloud) walk(root string, visit fs.WalkDirFunc) error {
	name, err := c.name("walk", root)
	if err != nil {
		return visit(root, nil, err)
	}
	return fs.WalkDir(c.tree(), name, func(name string, d fs.DirEntry, err error) error {
		if name == "." {
			return visit(cloudRoot, d, err)
		}
		return visit(c.path(name), d, err)
	})
}

// readDir implements system.
func (c *cloud) readDir(p string, most int) ([]fs.DirEntry, error) {
	name, err := c.name("readdir", p)
	if err != nil {
		return nil, err
	}
	entries, err := c.tree().ReadDir(name)
	if most > 0 {
		entries = entries[:min(most, len(entries))]
	}
	return entries, err
}

// glob implements system, over the list.
func (c *cloud) glob(pattern string) ([]string, error) {
	key, ok := c.key(pattern)
	if !ok {
		return nil, nil
	}
	names, err := fs.Glob(c.tree(), key)
	for i := range names {
		names[i] = c.path(names[i])
	}
	return names, err
}

// named implements system: a URL in a table is a path if it is in this bucket. The
// parameters of a URL do not count.
func (c *cloud) named(text string) (string, bool) {
	if !object.IsURL(text) {
		return "", false
	}
	where, key, err := object.SplitURL(text)
	if err != nil {
		return text, true
	}
	where, _, _ = strings.Cut(where, "?")
	own, _, _ := strings.Cut(c.from.URL(), "?")
	if strings.HasPrefix(own, "file:") {
		key, where = strings.TrimPrefix(strings.TrimPrefix(where, own), "/"), own
	}
	if where != own || !isPath(key) {
		return text, true
	}
	return c.path(key), true
}

// bucket implements system.
func (c *cloud) bucket() object.Bucket { return c.from }

// broken implements system.
func (c *cloud) broken() error {
	if err := c.gone.Load(); err != nil {
		return *err
	}
	return nil
}

// notes implements system.
func (c *cloud) notes() []string {
	var notes []string
	if c.inventory != nil {
		notes = c.inventory.notes
	}
	if c.odd.n == 0 {
		return notes
	}
	return append(slices.Clone(notes), fmt.Sprintf("%d objects have keys that are no paths, and were ignored, such as %s", c.odd.n,
		Quoted(c.odd.key)))
}

// object returns the object at a path. Before the bucket is listed, it asks the bucket.
func (c *cloud) object(ctx context.Context, p string) (o object.Info, err error) {
	_, err = c.stat(p)
	if key, ok := c.key(p); err != nil && ok && !c.listed && isPath(key) {
		err := Attempt(ctx, func() (err error) {
			o, err = c.from.Stat(ctx, key)
			return err
		})
		if errors.Is(err, schema.ErrNotFound) {
			err = &fs.PathError{Op: "open", Path: c.shown(p), Err: syscall.ENOENT}
		}
		return o, err
	}
	return c.known(p)
}

// known returns the object at a path from the list. Anything but an object is an error.
func (c *cloud) known(p string) (object.Info, error) {
	info, err := c.stat(p)
	if err == nil {
		err = regular(c.shown(p), info)
	}
	if err != nil {
		return object.Info{}, err
	}
	return info.Sys().(object.Info), nil
}

// open implements system. Reads ask for the version that was listed, so that an object
// that is replaced during an import is an error, and not a mixture.
func (c *cloud) open(ctx context.Context, p string) (*File, error) {
	// The file is read on its own, so its reading ends with it.
	r := c.reading(ctx, nil, aloneBytes)
	f, err := r.open(p)
	if err != nil {
		r.close()
		return nil, err
	}
	f.handle.(*objectFile).own = r
	return f, nil
}
