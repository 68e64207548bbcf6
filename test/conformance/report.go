// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Result is the result of critest with one runtime.
type Result struct {
	Runtime string // as the page names it
	Version string // as reported by the runtime
	NotRun  string // why there are no counts; "" if there are
	Counts
	Took time.Duration
}

// Counts are the counts of the specifications of one report. Each one is counted once.
type Counts struct {
	Passed, Failed, Skipped int
	Unselected              int            // by the flags of critest
	Failures                []string       // their names
	Reasons                 map[string]int // of skipped specifications
}

// spec is one of ginkgo's reports of a specification: see its package types.
type spec struct {
	LeafNodeType            string
	LeafNodeText            string
	ContainerHierarchyTexts []string
	State                   string
	Failure                 struct{ Message string }
}

// ids are the IDs of containers in a reason, which are others in each run.
var ids = regexp.MustCompile(`\[?[0-9a-f]{64}(?:[ ,]+[0-9a-f]{64})*\]?`)

// count reads ginkgo's report. A specification that the flags do not select is counted apart; one
// that
//
//	was interrupted, timed out or panicked has failed, and so has what runs before or after all.
func count(report []byte) (c Counts, err error) {
	var suites []struct {
		SuiteSucceeded bool
		SpecReports    []spec
	}
	if err := json.Unmarshal(report, &suites); err != nil {
		return Counts{}, fmt.Errorf("read ginkgo's report: %w", err)
	}
	c.Reasons = map[string]int{}
	succeeded := true
	for _, suite := range suites {
		succeeded = succeeded && suite.SuiteSucceeded
		for _, s := range suite.SpecReports {
			name := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
			switch {
			case s.LeafNodeType != "It":
				if s.State != "passed" && s.State != "skipped" {
					c.Failures = append(c.Failures, "["+s.LeafNodeType+"]")
					c.Failed++
				}
			case s.State == "passed":
				c.Passed++
			case s.State == "skipped" && s.Failure.Message == "":
				c.Unselected++
			case s.State == "skipped":
				c.Skipped++
				reason, _, _ := strings.Cut(strings.TrimSpace(s.Failure.Message), "\n")
				reason = ids.ReplaceAllString(reason, "...")
				c.Reasons[reason]++
			case s.State == "pending":
				c.Skipped++
				c.Reasons["pending"]++
			default:
				c.Failed++
				c.Failures = append(c.Failures, name)
			}
		}
	}
	slices.Sort(c.Failures)
	switch {
	case c.Passed+c.Failed+c.Skipped == 0:
		return Counts{}, errors.New("ginkgo's report has no specification that ran")
	case !succeeded && c.Failed == 0:
		return Counts{}, errors.New("ginkgo's report says that the suite failed, and names no specification that did")
	}
	return c, nil
}
