/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines on standard error, one write each, with systemd's priority prefix when the journal reads them. */
#ifndef SLAB_SERVER_LOG_H
#define SLAB_SERVER_LOG_H

enum log_level { LOG_LEVEL_ERROR = 3, LOG_LEVEL_WARNING = 4, LOG_LEVEL_NOTICE = 5, LOG_LEVEL_INFO = 6 };

/* Lines less urgent than this are not written; at first LOG_LEVEL_INFO.  Any thread. */
void log_set_level(enum log_level level);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_notice(...) log_line(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)

#endif
