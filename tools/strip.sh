#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Takes out of a program or library what running it does not need: tools/strip.sh FILE [TO]
exec strip --strip-unneeded --remove-section=.comment --remove-section=.note -o "${2:-$1}" "$1"
