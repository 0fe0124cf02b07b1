# vectors.R COUNT: sorts, strings, a linear model and matrices; what is printed depends on all of it.
count <- as.integer(commandArgs(trailingOnly = TRUE)[1])
set.seed(5)
numbers <- runif(count)
frame <- data.frame(key = sprintf("key-%07d", sample(count)), group = sample(50L, count, TRUE),
                    number = numbers, stringsAsFactors = FALSE)
frame <- frame[order(frame$key), ]
stopifnot(!is.unsorted(frame$key), abs(sum(frame$number) - sum(numbers)) < 1e-6)
print(head(frame, 3))
print(tapply(frame$number, frame$group, mean)[1:5], digits = 12)
print(coef(lm(number ~ group, frame)), digits = 8)
side <- 300L
matrix_ <- matrix(rnorm(side * side), side) + diag(side) * side
stopifnot(max(abs(solve(matrix_) %*% matrix_ - diag(side))) < 1e-9)
texts <- paste0(frame$key, "-", frame$group)
rm(frame)
invisible(gc())
print(sum(nchar(texts)))
print(length(unique(substr(texts, 5, 9))))
