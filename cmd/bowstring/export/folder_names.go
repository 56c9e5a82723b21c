package export

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// home is where a row's files may lie: in the folders of its split, if that
// has one, and class, with the base name that it had at its source or its id.
type home struct {
	split, class string // folders, "" for none
	name         string // at the source, "" where it is no path within a folder
	id           string
}

// paths lists the paths to try for a blob, best first. suffix tells the blob
// of a further column from that of the first.
func (h home) paths(suffix string, data []byte) []string {
	folder := path.Join(h.split, h.class)
	// The name of a class may be none that a file system takes: then its samples lie beside the folders.
	last := []string{path.Join(folder, h.id) + suffix + ending(data), path.Join(h.split, h.id) + suffix + ending(data)}
	if h.name == "" {
		return last
	}
	name := h.name
	dirs := strings.Split(path.Dir(name), "/")
	if h.split != "" && dirs[0] != h.split || h.class != "" && !slices.Contains(dirs, h.class) {
		name = path.Join(folder, path.Base(name))
	}
	if suffix != "" || path.Ext(name) == "" {
		name = strings.TrimSuffix(name, path.Ext(name)) + suffix + ending(data)
	}
	return append([]string{name}, last...)
}

// sourceName cleans the name that a sample had at its source, and returns ""
// if it is no path within a folder, or one that readers skip.
func sourceName(name string) string {
	name = path.Clean(filepath.ToSlash(name))
	if name == "." || !filepath.IsLocal(name) {
		return ""
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") || slices.Contains(reserved, part) {
			return ""
		}
	}
	return name
}

// folderName makes the name of a folder from that of a class.
func folderName(class string) string {
	if class == "" {
		return ""
	}
	name := strings.ReplaceAll(class, "/", url.PathEscape("/"))
	if strings.HasPrefix(name, ".") || slices.Contains(reserved, name) {
		name = fmt.Sprintf("%%%02X%s", name[0], name[1:])
	}
	return name
}

// ending is the usual ending of a file with such content.
func ending(data []byte) string {
	switch kind, _, _ := strings.Cut(http.DetectContentType(data), ";"); kind {
	case "image/jpeg":
		return ".jpg"
	case "image/png":
		return ".png"
	case "image/gif":
		return ".gif"
	case "image/webp":
		return ".webp"
	case "image/bmp":
		return ".bmp"
	case "audio/wave":
		return ".wav"
	case "audio/mpeg":
		return ".mp3"
	case "application/ogg":
		return ".ogg"
	case "text/plain":
		return ".txt"
	}
	switch {
	case bytes.HasPrefix(data, []byte("II*\x00")), bytes.HasPrefix(data, []byte("MM\x00*")):
		return ".tiff"
	case bytes.HasPrefix(data, []byte("fLaC")):
		return ".flac"
	}
	return ".bin"
}
