package source

import (
	"fmt"

	"bowstring/schema"
)

// Objects lists the objects that are known of the bucket that the files lie in, in ascending order of their keys, and
// returns the bucket's URL. Of a data set that was opened they are all of its folder. Their keys are the files' names.
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
