// Package arch holds the tests that keep the architecture: the allowed imports, and the forbidden
// contents of files.
//
// It owns the tables of these rules and has no code of its own. A rule that stands in the way is
// changed in its table, with its reason, in the same change as the code that needs it.
package arch
