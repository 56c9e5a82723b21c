package source

import (
	"fmt"

	"bowstring/schema"
)

// Objects returns the URL of the bucket and its known objects, in ascending order of
// their keys. After a data set has been opened, these are all objects of its folder.
// Their keys are the files' names. If the files are not in a bucket, the error wraps
// schema.ErrInvalid.
func (f *Files) Objects() (bucket string, objects []schema.Object, err error) {
	c, ok := f.system.(*cloud)
	if !ok {
		return "", nil, fmt.Errorf("%w: %s is not named by the URL of a bucket", schema.ErrInvalid, f.shown(f.root))
	}
	objects = make([]schema.Object, 0, c.keys.n)
	for o := range c.keys.from("") {
		objects = append(objects, schema.Object{Key: o.Key, Size: o.Size, Version: o.Version})
	}
	return c.from.URL(), objects, nil
}
