//go:build planted

package protocol

import "os"

// EnvPlanted is the environment variable that names a mistake for the stores of this
// process. It serves to check that tests against a real database find the mistake. No
// other build reads it.
const EnvPlanted = "BOWSTRING_PLANTED"

func init() {
	name := os.Getenv(EnvPlanted)
	if name == "" {
		return
	}
	var known bool
	everywhere, known = map[string]bug{
		"commit unfenced":   bugCommitUnfenced,
		"commit twice":      bugCommitTwice,
		"delete too much":   bugDeleteTooMuch,
		"keep nothing":      bugKeepNothing,
		"no wait":           bugNoWait,
		"number twice":      bugNumberTwice,
		"roots unconfirmed": bugRootsUnconfirmed,
		"tags ignored":      bugTagsIgnored,
		"trust all":         bugTrustAll,
		"unfinished kept":   bugUnfinishedKept,
	}[name]
	if !known {
		panic(EnvPlanted + ": there is no mistake " + name)
	}
}
