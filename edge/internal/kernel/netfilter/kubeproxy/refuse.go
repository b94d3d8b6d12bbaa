package kubeproxy

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// The proxy refuses a Service without endpoints by ICMP's Destination Unreachable, and Linux sends
// one a second to each destination (icmp(7), icmp_ratelimit): every further client would hang. The
// limit of all messages together (icmp_msgs_per_sec) stays.
const (
	ratemask4    = "/proc/sys/net/ipv4/icmp_ratemask" // a bit for each type that is limited
	ratemask6    = "/proc/sys/net/ipv6/icmp/ratemask" // ranges of types
	unreachable4 = 3
	unreachable6 = 1
)

// refuseAtOnce takes Destination Unreachable out of the types that are limited.
func refuseAtOnce() error {
	return errors.Join(change(ratemask4, withoutBit), change(ratemask6, withoutType))
}

func change(path string, to func(string) (string, error)) error {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // a kernel without that family, or of before the setting
	}
	if err != nil {
		return err
	}
	have := strings.TrimSpace(string(raw))
	want, err := to(have)
	if err != nil {
		return fmt.Errorf("%s has %q: %w", path, have, err)
	}
	if want == have {
		return nil
	}
	return os.WriteFile(path, []byte(want), 0o644)
}

func withoutBit(mask string) (string, error) {
	m, err := strconv.ParseUint(mask, 10, 32)
	return strconv.FormatUint(m&^(1<<unreachable4), 10), err
}

func withoutType(mask string) (string, error) {
	var all []string
	add := func(from, to int) {
		switch {
		case from == to:
			all = append(all, strconv.Itoa(from))
		case from < to:
			all = append(all, fmt.Sprintf("%d-%d", from, to))
		}
	}
	if mask == "" {
		return "", nil
	}
	for part := range strings.SplitSeq(mask, ",") {
		first, last, ranged := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to := from
		if err == nil && ranged {
			to, err = strconv.Atoi(last)
		}
		if err != nil {
			return "", err
		}
		if from > unreachable6 || to < unreachable6 {
			add(from, to)
			continue
		}
		add(from, unreachable6-1)
		add(unreachable6+1, to)
	}
	return strings.Join(all, ","), nil
}
