// Package i18n keeps kubectl's commands from loading their message catalogue where it would change
// nothing: parsing it takes half of a program's start (25 ms and 4 MB).
//
// A program that has commands of kubectl imports it for its effect. It refuses to decide the
// language, which is kubectl's own choice. It is called once, before main.
package i18n

import (
	"os"
	"strings"

	"k8s.io/kubectl/pkg/util/i18n"
)

// kubectl translates in its packages' variables, before main. Go initializes this package before
// them because its path is lower (Go specification, Program initialization).
var _ = i18n.SetLoadTranslationsFunc(load)

func load() error {
	if english(os.Getenv) {
		return nil // a text without a translation is its own
	}
	return i18n.LoadTranslations("kubectl", nil)
}

// english reports whether messages are in English by the environment, as kubectl reads it
// (locale(7)).
func english(getenv func(string) string) bool {
	for _, variable := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		if value := getenv(variable); value != "" {
			language, _, _ := strings.Cut(value, ".")
			return language == "C" || language == "POSIX" || language == "en" || strings.HasPrefix(language, "en_")
		}
	}
	return true
}
