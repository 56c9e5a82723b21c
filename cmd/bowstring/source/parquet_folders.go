package source

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// nullFolder is the value of a folder of rows that have none, as Hive and Spark write it.
const nullFolder = "__HIVE_DEFAULT_PARTITION__"

// folderKey is a column whose values are in the names of folders: year=2024/month=1/part-00000.parquet.
type folderKey struct {
	name  string
	field arrow.Field
	whole bool // the values of all folders are integers
}

// value is that of the rows of a file.
func (k *folderKey) value(rel string) any {
	v, ok := folderValues(rel)[k.name]
	if !ok || v == nullFolder {
		return nil
	}
	if k.whole {
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			return n
		}
	}
	return v
}

// folderValues are the keys and values that the folders of a file name.
func folderValues(rel string) map[string]string {
	found := map[string]string{}
	for part := range strings.SplitSeq(path.Dir(rel), "/") {
		key, value, ok := strings.Cut(part, "=")
		if !ok || key == "" {
			continue
		}
		if v, err := url.PathUnescape(value); err == nil {
			value = v
		}
		if k, err := url.PathUnescape(key); err == nil {
			key = k
		}
		found[key] = value
	}
	return found
}

// addFolderKeys makes columns of what the folders of the files say, where the files have no such column: a key is an
// int64 if all its values are integers in their shortest form, and text otherwise. The key split tells the split.
func (s *parquetSource) addFolderKeys() {
	for _, sh := range s.shards {
		if sh.missing != "" {
			continue
		}
		values := folderValues(sh.rel)
		for part := range strings.SplitSeq(path.Dir(sh.rel), "/") {
			key, _, _ := strings.Cut(part, "=")
			if k, err := url.PathUnescape(key); err == nil {
				key = k
			}
			value, ok := values[key]
			if !ok || key == schema.SplitColumn || s.hasColumn(key) || !s.layout.choice.wants(key, freeName(key, nil)) {
				continue
			}
			i := slices.IndexFunc(s.keys, func(k folderKey) bool { return k.name == key })
			if i < 0 {
				i = len(s.keys)
				s.keys = append(s.keys, folderKey{name: key, whole: true})
			}
			n, err := strconv.ParseInt(value, 10, 64)
			if value != nullFolder && (err != nil || strconv.FormatInt(n, 10) != value) {
				s.keys[i].whole = false
			}
		}
	}
	for i := range s.keys {
		k := &s.keys[i]
		k.field = arrow.Field{Name: freeName(k.name, nil), Type: arrow.BinaryTypes.String, Nullable: true}
		if k.whole {
			k.field.Type = arrow.PrimitiveTypes.Int64
		}
	}
}

func (s *parquetSource) hasColumn(name string) bool {
	return slices.ContainsFunc(s.layout.fields, func(f arrow.Field) bool { return f.Name == name })
}

// isParquetData says whether a file holds rows, by its name: not what other programs keep beside them, as they keep
// _metadata.
func isParquetData(name string) bool {
	return extension(name) == "parquet" && !isMetadata(name) && !strings.HasPrefix(name, "_")
}

// withoutPrivate leaves out the files in folders such as _temporary, which Spark does not read, either.
func withoutPrivate(shards []shard) []shard {
	return slices.DeleteFunc(shards, func(sh shard) bool {
		for part := range strings.SplitSeq(path.Dir(sh.rel), "/") {
			if strings.HasPrefix(part, "_") && !strings.Contains(part, "=") {
				return true
			}
		}
		return false
	})
}

// checkNoLake refuses a table whose files count or do not by what a log says: rows that were deleted or replaced are in
// files, too.
func checkNoLake(dir string) error {
	kind := ""
	if isDir(filepath.Join(dir, "_delta_log")) {
		kind = "Delta Lake"
	} else if found, _ := filepath.Glob(filepath.Join(globQuoted(dir), "metadata", "*.metadata.json")); len(found) > 0 {
		kind = "Iceberg"
	} else if _, err := os.Stat(filepath.Join(dir, ".hoodie")); err == nil {
		kind = "Hudi"
	}
	if kind == "" {
		return nil
	}
	return fmt.Errorf("%w: it is a table of %s, whose log says which of its files count; write its rows as plain Parquet "+
		"files first, or ingest what its library reads", schema.ErrInvalid, kind)
}

// globQuoted is a path as a pattern of itself.
func globQuoted(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}
